"""Starting from the embeddings of another student, such as a pretrained one."""

from pathlib import Path

import torch

from pipeline.errors import ConfigError, raise_all
from pipeline.files import sha256
from student.architecture import StudentConfig, read_config
from student.model import CONFIG_FILE, WEIGHTS_FILE, Student

SAME = ("tokenizer_sha256", "matrix_size", "vector_size", "bidirectional", "table_dtype")


def source_sha256(run: Path | None, config: StudentConfig) -> str | None:
    """SHA-256 of the weights to start from, for the record of a run; None without ``run``.

    Raises:
        ConfigError: if the folder holds no weights, or naming every way in which its embeddings differ.
        IntegrityError: if the folder holds no student.
    """
    if run is None:
        return None
    if not (run / WEIGHTS_FILE).is_file():
        raise ConfigError(f"--init-from {run}: not the folder of a student: it has no {WEIGHTS_FILE}")
    there = read_config(run / CONFIG_FILE)
    problems = [
        f"{name} is {getattr(there, name)!r} there and {getattr(config, name)!r} here"
        for name in SAME
        if getattr(there, name) != getattr(config, name)
    ]
    raise_all(ConfigError, f"--init-from {run}: its embeddings do not fit", problems)
    return sha256(run / WEIGHTS_FILE)


def copy_embeddings(run: Path, student: Student) -> None:
    """Copies the tables of the student in ``run`` into another of the same embeddings; the head stays as it is."""
    source = Student.load(run)
    with torch.no_grad():
        for table, own in zip(source.encoder.tables(), student.encoder.tables(), strict=True):
            own.weight.copy_(table.weight)
