"""Stores weights and optimizer states atomically in safetensors files with a checksum, and never as a pickle."""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pipeline.errors import IntegrityError
from pipeline.files import write_atomically

# A damaged length field could request terabytes, so the header that is read has a limit.
MAX_HEADER_BYTES = 2**24
# The checksum is part of the file that it covers, so it is computed with zeros in its place.
CHECKSUM, UNKNOWN = "sha256", "0" * 64
# The pattern works on bytes, because parsing and rewriting the JSON could change its spacing.
STATED = re.compile(rb'"sha256":"([^"]*)"')


def save_checkpoint(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any]
) -> None:
    """Writes weights, optimizer state and progress to one safetensors file atomically.

    Args:
        path: the file.
        model: its state is stored under ``model.``.
        optimizer: the tensors of its state are stored under ``optimizer.``, but not settings such as the learning rate.
        progress: anything that JSON can hold.

    Raises:
        DataError: if it cannot be written, such as on a full disk.
    """
    # safetensors refuses tensors that share memory, so tied weights are stored under one name only.
    tensors = {f"model.{name}": tensor for name, tensor in _unshared(model).items()}
    # Learning rates are not stored: the schedule computes them from the step, also after a resume.
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    metadata = {"progress": json.dumps(progress)}
    # Only a power failure can destroy the file, and training can be repeated, so the slow fsync is omitted.
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
        # The checksum comes first: the library accepts a file whose numbers were damaged on disk.
        check_tensors(path)
        with safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        if weights.keys() != _unshared(model).keys():
            raise ValueError("it belongs to another model")
        # Tied weights are in the file under one name only, so the load cannot be strict. The keys were compared above.
        model.load_state_dict(weights, strict=False)
    except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError, OSError) as error:
        raise unusable(path, error) from error
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    # The groups of the new optimizer are kept, because they refer to the parameters of this process.
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return dict(progress)


def unusable(path: Path, reason: object) -> IntegrityError:
    """Returns the error for an unusable checkpoint."""
    return IntegrityError(f"{path}: not a usable checkpoint: {reason}. Remove it to start again")


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's parameters and buffers by name, for `write_tensors`."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def write_tensors(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None, durable: bool = True
) -> str:
    """Writes a safetensors file atomically with its own SHA-256 inside, computed with zeros in place of the digits.

    Returns: The checksum, hexadecimal.

    Raises:
        DataError: if it cannot be written, such as on a full disk.
    """
    actual = b""

    def write(temporary: Path) -> None:
        nonlocal actual
        # The placeholder has the checksum's length, so filling it in later moves no byte.
        save_file(tensors, temporary, {**(metadata or {}), CHECKSUM: UNKNOWN})
        # The header is sorted before hashing, so that the same weights give the same bytes and checksum.
        _sort_header(temporary)
        place, _, actual = _checksum(temporary)
        with temporary.open("r+b") as file:
            file.seek(place)
            file.write(actual)

    # Checksum and content appear under the final name together, so a killed process leaves no half-signed file.
    write_atomically(path, write, durable)
    return actual.decode()


def tensors_sha256(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Returns a hash of tensors by name, in the order of names, independent of their files."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        # Names and shapes are hashed, too: the same bytes in another shape are another model.
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_tensors(path: Path) -> str:
    """Returns the checksum of a safetensors file from `write_tensors`. Empty for foreign files.

    Raises:
        ValueError: if the content does not match the checksum.
    """
    _, stated, actual = _checksum(path)
    if stated not in (b"", actual):
        raise ValueError("its checksum does not match its content: the file was damaged or changed")
    return actual.decode()


def _checksum(path: Path) -> tuple[int, bytes, bytes]:
    """Returns the position of a file's checksum, the stored checksum (empty if absent), and the correct one."""
    with path.open("rb") as file:
        size = file.read(8)
        header = file.read(min(int.from_bytes(size, "little"), MAX_HEADER_BYTES))
        found = STATED.search(header)
        if found is None:
            return 0, b"", b""
        # Hashing the file with zeros in place of the checksum repeats the state in which it was computed.
        blank = header[: found.start(1)] + UNKNOWN.encode() + header[found.end(1) :]
        digest = hashlib.file_digest(file, lambda: hashlib.sha256(size + blank))
        return len(size) + found.start(1), found[1], digest.hexdigest().encode()


def _sort_header(path: Path) -> None:
    """Sorts the metadata of the header, which the library writes in random order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= size, "the reordered header has the same length"
        file.seek(8)
        file.write(text.ljust(size))


def _unshared(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's state without the second names of tied weights."""
    # `named_parameters` lists a tied weight once, `state_dict` lists it under each of its names.
    first_names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first_names}
