"""Reads and writes records as JSON files, each with a checksum of its own content that reveals damage."""

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError
from pipeline.file_names import CONFIG_FILE, FINETUNE_RECORD, SET_RECORD
from pipeline.files import read_small_file, write_text
from pipeline.untrusted import parse_json, without_nan

CHECKSUM = "record_sha256"
MAX_RECORD_BYTES = 2**24
# Of resumable work: its state, command and settings, those of the context, and its result once it is finished.
Record = dict[str, Any]


def json_sha256(values: Any) -> str:
    """Returns the SHA-256 of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def with_checksum(text: str) -> str:
    """The text of a record, an object with an indent of 2, with its checksum as the last key."""
    # The key is added to the text, not to the values: serializing again could format floats or keys differently.
    body = text.rstrip().removesuffix("}").rstrip()
    return f'{body},\n  "{CHECKSUM}": "{json_sha256(json.loads(text))}"\n}}\n'


def without_checksum(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a record without its checksum. People who edit a record by hand remove the checksum.

    Raises:
        ValueError: if there is a checksum that does not match the values.
    """
    rest = {key: value for key, value in values.items() if key != CHECKSUM}
    # A missing checksum is allowed, so that people can edit a record by hand and remove the key.
    if CHECKSUM in values and values[CHECKSUM] != json_sha256(rest):
        raise ValueError(
            f"its {CHECKSUM} does not match its content: the file was damaged or edited. "
            f"If you edited it, remove the key {CHECKSUM!r}"
        )
    return rest


def parse_record(data: bytes) -> dict[str, Any]:
    """The values of a record, without its checksum.

    Raises:
        ValueError: if it is not a JSON object, or the checksum does not match the values.
    """
    values = parse_json(data)
    if not isinstance(values, dict):
        raise ValueError(f"not a JSON object, but a {type(values).__name__}")
    return without_checksum(values)


def read_record(path: Path) -> dict[str, Any]:
    """Reads a record, without its checksum.

    Raises:
        FileNotFoundError: if the record does not exist.
        IntegrityError: if it is damaged, too large or not a plain file.
    """
    data = read_small_file(path, MAX_RECORD_BYTES, may_be_link=True)
    try:
        return parse_record(data)
    except ValueError as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error


def read_work_record(path: Path) -> Record:
    """Reads the record of resumable work, such as that of a run.

    Raises:
        IntegrityError: if it is missing or damaged.
    """
    try:
        record = read_record(path)
    except FileNotFoundError as error:
        problem = f"has no {path.name}" if path.parent.exists() else "no such folder"
        raise IntegrityError(f"{path.parent}: {not_student_in(path.parent) or problem}") from error
    if not {"state", "settings", "command"} <= record.keys():
        raise IntegrityError(f"{path}: not a record of work: it has no state, no settings or no command")
    return record


def not_student_in(folder: Path) -> str:
    """Returns advice if a folder holds a set or a teacher where a student is needed, otherwise an empty text."""
    if (folder / SET_RECORD).is_file():
        return f"holds a logit set, not a student. Train one with `distill train-student --set {folder}`."
    return teacher_in(folder)


def teacher_in(folder: Path) -> str:
    """Returns advice if a folder holds a teacher where a student is needed, otherwise an empty text."""
    try:
        # A student that is a BERT has the keys of transformers, too, and its own in addition.
        values = read_record(folder / CONFIG_FILE)
        is_teacher = "model_type" in values and "distill" not in values
    except (FileNotFoundError, IntegrityError):
        is_teacher = False
    if not is_teacher and not (folder / FINETUNE_RECORD).is_file():
        return ""
    return (
        "holds a teacher, not a student. Store its predictions with `distill teacher-dump --model-name-or-path "
        f"{folder}`, then train a student on them with `distill train-student`."
    )


def write_record(path: Path, values: dict[str, Any]) -> None:
    """Writes a record with its checksum atomically. NaN and Inf, which JSON lacks, become null."""
    write_text(path, with_checksum(json.dumps(without_nan(values), indent=2, ensure_ascii=False)))
