"""Weights and optimizer states on disk: safetensors, whole or not at all, no pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.errors import DataError, IntegrityError
from pipeline.files import write_atomically


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> None:
    """Writes weights, optimizer state and progress to one safetensors file, whole or not at all.

    Args:
        path: the file.
        model: its state is kept under ``model.``.
        optimizer: the tensors of its state are kept under ``optimizer.``; settings such as the rate are not.
        progress: anything that JSON can hold.

    Raises:
        DataError: if it cannot be written, such as on a full disk.
    """
    tensors = {f"model.{name}": tensor for name, tensor in _unshared(model).items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    metadata = {"progress": json.dumps(progress)}
    write_tensors(path, contiguous, metadata, durable=False)


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
        raise unusable(path, error) from error
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return dict(progress)


def unusable(path: Path, reason: object) -> IntegrityError:
    """The error for a checkpoint that cannot be gone on from."""
    return IntegrityError(f"{path}: not a usable checkpoint: {reason}; remove it to start again")


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


def _unshared(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's state without the second names of tied weights."""
    first_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first_names}
