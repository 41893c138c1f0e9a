"""What a verified set of examples gets besides: vectors of the vocabulary, its teacher's or another encoder's."""

from pathlib import Path

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import TeacherError
from pipeline.logit_set.reader import LogitSet
from pipeline.logit_set.record import SetRecord
from pipeline.logit_set.signals.token_vectors import Speaker
from pipeline.logit_set.token_vectors import Vectors, read_token_vectors, token_vectors_problem, with_token_vectors
from teacher.config import DumpTask
from teacher.dump.records import teacher_record
from teacher.inference.classifier import Teacher
from teacher.inference.encoder import SentenceEncoder, load_encoder
from teacher.inference.token_vectors import has_states, token_vectors


def load_speaker(config: DumpTask, teacher: Teacher) -> SentenceEncoder | None:
    """The encoder that ``--token-vectors-from`` names, on the teacher's device; None without it.

    Raises:
        DataError: if it cannot be found or read.
        TeacherError: if it is no encoder, or has another vocabulary than the teacher.
    """
    if config.token_vectors_from is None:
        return None
    encoder = load_encoder(config.token_vectors_from, None, config.max_seq_length, "mean")
    ours, theirs = teacher.tokenizer.get_vocab(), encoder.tokenizer.get_vocab()
    if ours != theirs:
        different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        raise TeacherError(
            f"--token-vectors-from {encoder.name}: {len(different):,} tokens, such as {different[0]!r}, have other ids "
            f"than in the vocabulary of {teacher.name}; students read the teacher's tokens"
        )
    encoder.model.to(teacher.model.device)
    return encoder


def add_token_vectors(
    root: Path,
    record: SetRecord,
    teacher: Teacher,
    encoder: SentenceEncoder | None,
    old: LogitSet | None,
    max_tokens: int,
    is_required: bool,
) -> SetRecord:
    """Puts token vectors into a set, unless it has them. Call it inside `inference_mode`, in one process.

    Args:
        root: the set's folder.
        record: its record, verified.
        teacher: its teacher, on its device.
        encoder: what is asked in place of the teacher; without it, another's that are there stay.
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
        return stored.vector_VW if stored is not None and stored.speaker == speaker else ask()

    def ask() -> Floats:
        size = record.tokenizer.vocabulary_size
        with console.progress(size, "teacher: vocabulary") as steps:
            return token_vectors(encoder or teacher, size, max_tokens, steps.advance)

    stored = record.signals.token_vectors
    if encoder is not None:
        speaker = Speaker(layer=encoder.model.config.num_hidden_layers, encoder=teacher_record(encoder))
    elif stored is not None and stored.encoder is not None and token_vectors_problem(root, record) is None:
        return record
    else:
        speaker = Speaker()
        if not has_states(teacher):
            message = f"teacher {teacher.name}: {type(teacher.model).__name__} gives no hidden states for token vectors"
            if is_required:
                raise TeacherError(f"{message}; leave --token-vectors out")
            console.warn(f"{message}; the set is without them")
            return record
    return with_token_vectors(root, record, vectors, speaker)
