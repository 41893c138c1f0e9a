"""A model's folder: ``config.json`` and ``model.safetensors``, each with a checksum of itself.

Students that share their encoder have a folder each, in which ``model.safetensors`` contains only the head and the
checksum of its encoder. ``encoder.safetensors`` is one file with a hard link in every folder. A head therefore never
gets the encoder of another epoch.

In the files of a BERT, weights have the names of `transformers`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pipeline.errors import IntegrityError
from pipeline.file_names import CONFIG_FILE, WEIGHTS_FILE
from pipeline.files import link_or_copy, write_atomically, write_text
from pipeline.record_file import with_checksum
from pipeline.training.checkpoint import check_tensors, state_of, write_tensors
from student.model.disk_rounding import MOST_WIDENED, rounded, widened

ENCODER_FILE = "encoder.safetensors"
ENCODER, ENCODER_CHECKSUM = "encoder.", "encoder_sha256"
# A BERT's file uses these prefixes, so that transformers loads it without a conversion.
HUGGING_FACE = {ENCODER: "bert.", "head.": "classifier."}
# Small differences between the estimate and the files are harmless, so 64 MiB are tolerated.
SUSPICIOUS_BYTES = 2**26
Tensors = dict[str, torch.Tensor]


def save_weights(
    folder: Path, config_json: str, model: nn.Module, is_bert: bool = False, is_rounded: bool = False
) -> None:
    """Writes ``config.json`` and ``model.safetensors``, each atomically.

    Args:
        folder: the folder of the model.
        config_json: an object with an indent of 2.
        model: the model.
        is_bert: whether `transformers` must be able to read the file.
        is_rounded: whether its weights are rounded.
    """
    save_config(folder, config_json)
    tensors = _state(model, is_rounded)
    write_tensors(folder / WEIGHTS_FILE, _renamed(tensors, HUGGING_FACE) if is_bert else tensors)


def save_sharing(models: Mapping[Path, tuple[str, nn.Module]], is_rounded: bool = False) -> None:
    """Writes models that share their encoder, each into its own folder, with the encoder's bytes only once.

    Killed in between, it may leave a folder with the head of another epoch, which `read_weights` refuses.

    Args:
        models: the text of the config and the model of each folder.
        is_rounded: whether their weights are rounded.
    """
    first = next(iter(models))
    whole = _state(models[first][1], is_rounded)
    encoder = {name: tensor for name, tensor in whole.items() if name.startswith(ENCODER)}
    # The encoder is written before the heads, since each head names the checksum of its encoder.
    checksum = write_tensors(first / ENCODER_FILE, encoder)
    for folder, (config_json, model) in models.items():
        save_config(folder, config_json)
        if folder != first:
            # A hard link saves the encoder's bytes for each further task.
            write_atomically(folder / ENCODER_FILE, partial(link_or_copy, first / ENCODER_FILE))
        head = {name: tensor for name, tensor in _state(model, is_rounded).items() if name not in encoder}
        write_tensors(folder / WEIGHTS_FILE, head, {ENCODER_CHECKSUM: checksum})


def check_room(folder: Path, least_bytes: int) -> None:
    """Refuses a ``config.json`` with far more numbers than the weights, before any memory is allocated.

    Args:
        folder: the folder of the model.
        least_bytes: the minimum size of the weights.

    Raises:
        IntegrityError: if a few lines would fill the memory.
    """
    paths, there = _weight_files(folder), stored_bytes(folder)
    # Compressed or sparse formats are not read, so weights cannot be larger than their files.
    if least_bytes > there + SUSPICIOUS_BYTES:
        named = " and ".join(path.name for path in paths) or WEIGHTS_FILE
        message = f"describes at least {least_bytes:,} bytes of weights, but {named} has only {there:,}"
        raise IntegrityError(f"{folder / CONFIG_FILE}: {message}")


def stored_bytes(folder: Path) -> int:
    """Returns the size of a folder's weights on disk, including a shared encoder."""
    return sum(path.stat().st_size for path in _weight_files(folder))


def load_weights(folder: Path, model: nn.Module) -> None:
    """Fills a model with the weights of a folder.

    Raises:
        IntegrityError: if the file is missing, damaged, or belongs to another model.
    """
    try:
        model.load_state_dict(read_weights(folder))
    except (RuntimeError, ValueError) as error:
        raise _not_the_weights(folder, error) from error


def read_weights(folder: Path, part: str = "") -> Tensors:
    """Returns the weights of a folder, including a shared encoder.

    Args:
        folder: the folder of the model.
        part: the prefix of the names of the requested weights.

    Raises:
        IntegrityError: if a file is missing or damaged, or the encoder does not belong to the head.
    """
    try:
        check_tensors(folder / WEIGHTS_FILE)
        tensors, metadata = _read(folder / WEIGHTS_FILE, part)
        expected = metadata.get(ENCODER_CHECKSUM)
        if expected is None:
            return tensors
        # A process killed between two files leaves a head with another epoch's encoder, which would predict nonsense.
        if check_tensors(folder / ENCODER_FILE) != expected:
            raise ValueError(f"{ENCODER_FILE} is of another epoch or student. Repeat the command that trained them.")
        return tensors | _read(folder / ENCODER_FILE, part)[0]
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise _not_the_weights(folder, error) from error


def encoder_checksum(folder: Path) -> str | None:
    """Returns the checksum of the encoder that a folder's student shares with others, or None if it shares none.

    Raises:
        IntegrityError: if its weights cannot be read.
    """
    try:
        with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
            return (file.metadata() or {}).get(ENCODER_CHECKSUM)
    except (OSError, SafetensorError) as error:
        raise _not_the_weights(folder, error) from error


def students_in(folder: Path) -> str:
    """Returns the students inside a folder that is not a student, as the end of a message. Empty without students."""
    names = ", ".join(str(path.parent) for path in sorted(folder.glob(f"*/{CONFIG_FILE}")))
    return f". It contains students. Name one of them: {names}" if names else ""


def _weight_files(folder: Path) -> list[Path]:
    return [path for path in (folder / WEIGHTS_FILE, folder / ENCODER_FILE) if path.exists()]


def _state(model: nn.Module, is_rounded: bool) -> Tensors:
    return rounded(state_of(model)) if is_rounded else state_of(model)


def save_config(folder: Path, config_json: str) -> None:
    """Writes ``config.json`` alone, whole or not at all."""
    write_text(folder / CONFIG_FILE, with_checksum(config_json))


def _read(path: Path, part: str) -> tuple[Tensors, dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        # Filtering names before reading keeps a whole encoder out of memory if only the head is wanted.
        ours = {name: _ours(name) for name in file.keys()}  # noqa: SIM118
        tensors = {name: file.get_tensor(stored) for stored, name in ours.items() if name.startswith(part)}
        # The limit depends on the file's size: a few bytes could describe neutral rows that fill the memory.
        most_numbers = (MOST_WIDENED * path.stat().st_size + SUSPICIOUS_BYTES) // 4
        return widened(tensors, most_numbers), file.metadata() or {}


def _renamed(tensors: Tensors, prefixes: Mapping[str, str]) -> Tensors:
    return {_with_prefix(name, prefixes): tensor for name, tensor in tensors.items()}


def _ours(name: str) -> str:
    """Returns a weight's name in a student, from its name in any student's file."""
    return _with_prefix(name, {there: here for here, there in HUGGING_FACE.items()})


def _with_prefix(name: str, prefixes: Mapping[str, str]) -> str:
    old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    return prefixes.get(old, "") + name.removeprefix(old)


def _not_the_weights(folder: Path, error: Exception) -> IntegrityError:
    return IntegrityError(f"{folder / WEIGHTS_FILE}: not the weights of this student: {error}")
