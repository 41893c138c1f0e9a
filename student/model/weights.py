"""A model's folder: ``config.json`` and ``model.safetensors``, each with a checksum of itself."""

from pathlib import Path

from pydantic import BaseModel
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


def save_weights(folder: Path, config: BaseModel, model: nn.Module) -> None:
    """Writes ``config.json`` and ``model.safetensors``, each whole or not at all."""
    write_text(folder / CONFIG_FILE, with_checksum(config.model_dump_json(indent=2)))
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_tensors(folder / WEIGHTS_FILE, weights)


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


def load_weights(folder: Path, model: nn.Module) -> None:
    """Fills a model with the weights of a folder.

    Raises:
        IntegrityError: if the file is missing, damaged, or of another model.
    """
    try:
        check_tensors(folder / WEIGHTS_FILE)
        model.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise IntegrityError(f"{folder / WEIGHTS_FILE}: not the weights of this student: {error}") from error
