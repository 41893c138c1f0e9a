"""What the training loops of both stages share: order of rows, learning rate, and checkpoints without pickle."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.errors import DataError, IntegrityError
from pipeline.files import write_atomically

WINDOW_BATCHES = 50


def shuffled_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Cuts rows into random batches of like length: shuffled, sorted within windows of batches, shuffled again.

    A pure function of its arguments, so that a resumed epoch sees the same batches.

    Args:
        lengths: tokens per row.
        batch_size: rows per batch; the last of a window may have fewer.
        seed: seed of the run.
        epoch: number of the epoch.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    lengths_N = np.asarray(lengths)
    batches = []
    for start in range(0, len(order), WINDOW_BATCHES * batch_size):
        window = order[start : start + WINDOW_BATCHES * batch_size]
        window = window[np.argsort(lengths_N[window], kind="stable")]
        batches += [window[k : k + batch_size].tolist() for k in range(0, len(window), batch_size)]
    return [batches[k] for k in random.permutation(len(batches))]


@cache
def has_fast_bf16() -> bool:
    """Whether this machine has bf16 matrix instructions."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seeds dropout for one step, so that a resumed run draws what an undisturbed one would.

    `torch.manual_seed` would do the same, and keep a record of its caller for every device that is not in use.
    """
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)


def linear_decay(step: int, total_steps: int, warmup_steps: int = 0) -> float:
    """Factor on the learning rate: up linearly over the warm-up, then down linearly to 0."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Sets the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def quality(entry: dict[str, Any]) -> float:
    """What makes an epoch the best: the first metric on the first dev split; without dev gold, being the last.

    Args:
        entry: a record of an epoch, with ``epoch`` and ``metrics`` per split.
    """
    for metrics in entry["metrics"].values():
        return float(next(iter(metrics.values()), entry["epoch"]))
    return float(entry["epoch"])


def last_is_best(history: Sequence[dict[str, Any]]) -> bool:
    """Whether the last epoch is better than all before it."""
    return bool(history) and max(history, key=quality) is history[-1]


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> None:
    """Writes weights, optimizer state and progress to one safetensors file, whole or not at all.

    Args:
        path: the file.
        model: its state is kept under ``model.``.
        optimizer: the tensors of its state are kept under ``optimizer.``; settings such as the rate are not.
        progress: anything that JSON can hold.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _unshared(model).items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    metadata = {"progress": json.dumps(progress)}
    write_tensors(path, contiguous, metadata, durable=False)


def _unshared(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's state without the second names of tied weights."""
    first_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first_names}


def write_tensors(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None, durable: bool = True
) -> None:
    """Writes a safetensors file, whole or not at all.

    Raises:
        DataError: if it cannot be written, such as on a full disk.
    """
    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata), durable)
    except SafetensorError as error:
        raise DataError(f"{path}: cannot be written: {error}; is the disk full? What is finished is kept") from error


def load_checkpoint(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Restores what `save_checkpoint` wrote.

    Returns:
        The progress, or None if there is no checkpoint.

    Raises:
        IntegrityError: if the file is damaged or belongs to another model.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        if weights.keys() != _unshared(model).keys():
            raise ValueError("it is of another model")
        model.load_state_dict(weights, strict=False)  # what shares its memory with something else is not in the file
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError, OSError) as error:
        raise IntegrityError(f"{path}: not a usable checkpoint: {error}; remove it to start again") from error
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return dict(progress)
