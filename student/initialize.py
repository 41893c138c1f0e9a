"""Starting from the embeddings of another student, such as a pretrained one."""

from pathlib import Path

import torch

from pipeline.errors import ConfigError
from pipeline.files import sha256
from student.model import WEIGHTS_FILE, Student

SAME = ("tokenizer_sha256", "matrix_size", "vector_size", "bidirectional", "table_dtype")


def source_record(run: Path | None) -> str | None:
    """SHA-256 of the weights to start from, for the record of a run.

    Raises:
        ConfigError: if the folder holds no weights.
    """
    if run is None:
        return None
    if not (run / WEIGHTS_FILE).is_file():
        raise ConfigError(f"--init-from {run}: not the folder of a student: it has no {WEIGHTS_FILE}")
    return sha256(run / WEIGHTS_FILE)


def copy_embeddings(run: Path, student: Student) -> None:
    """Copies the tables of the student in ``run`` into another of the same embeddings; the head stays as it is.

    Raises:
        ConfigError: naming every way in which its embeddings differ.
        IntegrityError: if the folder holds no student.
    """
    source = Student.load(run)
    there, here = source.config, student.config
    problems = [
        f"{name} is {getattr(there, name)!r} there and {getattr(here, name)!r} here"
        for name in SAME
        if getattr(there, name) != getattr(here, name)
    ]
    if problems:
        raise ConfigError(f"--init-from {run}: its embeddings do not fit: {'; '.join(problems)}")
    with torch.no_grad():
        for table, own in zip(source.encoder.tables(), student.encoder.tables(), strict=True):
            own.weight.copy_(table.weight)
