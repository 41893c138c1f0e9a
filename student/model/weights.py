"""A model's folder: ``config.json`` and ``model.safetensors``, each with a checksum of itself."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from pipeline.errors import IntegrityError
from pipeline.files import write_text
from pipeline.record_file import with_checksum
from pipeline.training.checkpoint import check_tensors, write_tensors

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SUSPICIOUS_BYTES = 2**26
NO_PREFIXES: Mapping[str, str] = MappingProxyType({})


def save_weights(folder: Path, config_json: str, model: nn.Module, prefixes: Mapping[str, str] = NO_PREFIXES) -> None:
    """Writes ``config.json`` and ``model.safetensors``, each whole or not at all.

    Args:
        folder: the model's.
        config_json: an object with an indent of 2.
        model: the model.
        prefixes: what stands in the file's names of weights in place of what in the model's.
    """
    write_text(folder / CONFIG_FILE, with_checksum(config_json))
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_tensors(folder / WEIGHTS_FILE, _renamed(weights, prefixes))


def check_room(folder: Path, least_bytes: int) -> None:
    """Refuses a ``config.json`` of far more numbers than the weights have, before any memory is taken for them.

    Args:
        folder: the model's.
        least_bytes: what the weights must have.

    Raises:
        IntegrityError: if a few lines would fill the memory.
    """
    path = folder / WEIGHTS_FILE
    there = path.stat().st_size if path.exists() else 0
    if least_bytes > there + SUSPICIOUS_BYTES:
        message = f"describes at least {least_bytes:,} bytes of weights, but {path.name} has {there:,}"
        raise IntegrityError(f"{folder / CONFIG_FILE}: {message}")


def load_weights(folder: Path, model: nn.Module, prefixes: Mapping[str, str] = NO_PREFIXES) -> None:
    """Fills a model with the weights of a folder, whose names were changed as `save_weights` says.

    Raises:
        IntegrityError: if the file is missing, damaged, or of another model.
    """
    try:
        check_tensors(folder / WEIGHTS_FILE)
        back = {there: here for here, there in prefixes.items()}
        model.load_state_dict(_renamed(load_file(folder / WEIGHTS_FILE), back))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise IntegrityError(f"{folder / WEIGHTS_FILE}: not the weights of this student: {error}") from error


def _renamed(weights: dict[str, torch.Tensor], prefixes: Mapping[str, str]) -> dict[str, torch.Tensor]:
    def renamed(name: str) -> str:
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        return prefixes.get(old, "") + name.removeprefix(old)

    return {renamed(name): tensor for name, tensor in weights.items()}
