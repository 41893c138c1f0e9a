"""Reading the ``config.json`` of a student's folder."""

from pathlib import Path
from typing import Any

from pipeline.config import parse_model
from pipeline.errors import ConfigError, IntegrityError
from pipeline.record_file import read_record
from student.model.architecture import BERT_KEY, FORMAT_VERSION, PRETRAINED, EncoderConfig, StudentConfig
from student.model.weights import CONFIG_FILE, students_in


def read_config(path: Path) -> StudentConfig:
    """Reads the ``config.json`` of a student of a task.

    Raises:
        IntegrityError: if it is missing or damaged, or of another format version.
    """
    try:
        values = _own_part(read_record(path))
        if _kind(values):
            raise IntegrityError(f"{path.parent}: a pretrained student, without a task; train one --init-from it")
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise IntegrityError(f"{path}: format version {version!r}; this release reads version {FORMAT_VERSION}")
        return parse_model(StudentConfig, values, str(path))
    except FileNotFoundError as error:
        message = f"{path.parent}: not a student: it has no {path.name}{students_in(path.parent)}"
        raise IntegrityError(message) from error
    except ConfigError as error:
        raise IntegrityError(f"{path}: not a student's config: {error}") from error


def read_encoder_config(path: Path) -> EncoderConfig:
    """Reads the ``config.json`` of a pretrained student or of a student of a task.

    Raises:
        IntegrityError: if it is neither.
    """
    if not is_pretrained(path.parent):
        return read_config(path)
    values = read_record(path)
    try:
        return parse_model(PRETRAINED[values["kind"]], values, str(path))
    except ConfigError as error:
        raise IntegrityError(str(error)) from error


def is_pretrained(folder: Path) -> bool:
    """Whether a folder holds a pretrained student, rather than one of a task or nothing readable."""
    try:
        return _kind(read_record(folder / CONFIG_FILE)) is not None
    except (FileNotFoundError, IntegrityError):
        return False


def _own_part(values: dict[str, Any]) -> dict[str, Any]:
    """What a ``config.json`` says of the student, apart from what it says to readers of BERTs."""
    own = values.get(BERT_KEY)
    return own if isinstance(own, dict) else values


def _kind(values: dict[str, Any]) -> type[EncoderConfig] | None:
    """What a pretrained student's config is; None of a student of a task."""
    kind = values.get("kind")
    return PRETRAINED.get(kind) if isinstance(kind, str) else None
