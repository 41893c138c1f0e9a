"""What a verified set of examples gets besides: its teacher's vectors of the vocabulary."""

from pathlib import Path

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import TeacherError
from pipeline.logit_set.reader import LogitSet
from pipeline.logit_set.record import SetRecord
from pipeline.logit_set.token_vectors import Vectors, read_token_vectors, with_token_vectors
from teacher.inference.classifier import Teacher
from teacher.inference.token_vectors import has_states, token_vectors


def add_token_vectors(
    root: Path, record: SetRecord, teacher: Teacher, old: LogitSet | None, max_tokens: int, is_required: bool
) -> SetRecord:
    """Puts token vectors into a set, unless it has them. Call it inside `inference_mode`, in one process.

    Args:
        root: the set's folder.
        record: its record, verified.
        teacher: its teacher, on its device.
        old: a set of the same teacher, whose vectors need not be asked for.
        max_tokens: most tokens per batch.
        is_required: whether a teacher that gives no hidden states is an error; else the set stays without.

    Returns:
        The record on disk.

    Raises:
        TeacherError: if a vector is not finite, or there are none and they are required.
    """

    def vectors() -> Vectors:
        stored = read_token_vectors(old.root, old.record) if old is not None else None
        return stored.vector_VW if stored is not None else ask()

    def ask() -> Floats:
        size = record.tokenizer.vocabulary_size
        with console.progress(size, "teacher: vocabulary") as steps:
            return token_vectors(teacher, size, max_tokens, steps.advance)

    if not has_states(teacher):
        message = f"teacher {teacher.name}: {type(teacher.model).__name__} gives no hidden states for token vectors"
        if is_required:
            raise TeacherError(f"{message}; leave --token-vectors out")
        console.warn(f"{message}; the set is without them")
        return record
    return with_token_vectors(root, record, vectors)
