"""What a verified set gets besides: vectors of the vocabulary, its teacher's or another encoder's."""

from dataclasses import replace
from pathlib import Path

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import DistillError, TeacherError
from pipeline.sets.reader import LogitSet
from pipeline.sets.record import SetRecord
from pipeline.sets.signals.token_vectors import TokenVectorSource
from pipeline.sets.token_vectors import Vectors, read_token_vectors, token_vectors_problem, with_token_vectors
from pipeline.tasks.task import Task
from teacher.config import ITSELF, DumpTask
from teacher.dump.records import teacher_record
from teacher.models.classifier import Teacher
from teacher.models.encoder import SentenceEncoder, has_states, load_encoder, token_vectors
from teacher.models.loaded import sentence_encoder_of


def load_token_encoder(config: DumpTask, task: Task, teacher: Teacher) -> SentenceEncoder | None:
    """The encoder that is asked about the vocabulary, on the teacher's device; None if that is the teacher.

    It is the one that ``--token-vectors-from`` or the task's manifest names. Without, the encoder of sentences that
    the teacher was fine-tuned from, if it was one and is still there.

    Raises:
        DataError: if the one named cannot be found or read.
        TeacherError: if it is no encoder, or has another vocabulary than the teacher.
    """
    name = config.token_vectors_from or task.token_vectors_from or sentence_encoder_of(teacher.name)
    if name is None or name == ITSELF or not config.token_vectors:
        return None
    try:
        encoder = load_encoder(name, None, config.max_seq_length, "mean")
        _check_vocabulary(encoder, teacher)
    except DistillError as error:
        if config.token_vectors_from is not None:
            raise
        console.warn(
            "token vectors are the teacher's own; those of the encoder that it was fine-tuned from are not available: "
            f"{error}"
        )
        return None
    encoder.model.to(teacher.model.device)
    return encoder


def _check_vocabulary(encoder: SentenceEncoder, teacher: Teacher) -> None:
    ours, theirs = teacher.tokenizer.get_vocab(), encoder.tokenizer.get_vocab()
    if ours != theirs:
        different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        raise TeacherError(
            f"token vectors of {encoder.name}: {len(different):,} tokens, such as {different[0]!r}, have other ids "
            f"than in the vocabulary of {teacher.name}; students read the teacher's tokens"
        )


def add_token_vectors(
    root: Path,
    record: SetRecord,
    config: DumpTask,
    teacher: Teacher,
    encoder: SentenceEncoder | None,
    old: LogitSet | None,
    max_tokens: int,
) -> SetRecord:
    """Puts token vectors into a set; those that it has stay, unless ``--token-vectors-from`` names another speaker.

    Call it inside `inference_mode`, in one process.

    Args:
        root: the set's folder.
        record: its record, verified.
        config: the settings.
        teacher: its teacher, on its device.
        encoder: what is asked in place of the teacher, if anything.
        old: a set of the same teacher, whose vectors need not be asked for.
        max_tokens: most tokens per batch.

    Returns:
        The record on disk.

    Raises:
        TeacherError: if a vector is not finite, or a teacher gives none that was to give them.
    """
    has_them = record.signals.token_vectors is not None and token_vectors_problem(root, record) is None
    if has_them and config.token_vectors_from is None:
        return record
    if encoder is not None:
        speaker = _speaker(encoder)
    elif has_states(teacher):
        speaker = TokenVectorSource()
    else:
        message = f"teacher {teacher.name}: {type(teacher.model).__name__} gives no hidden states for token vectors"
        if config.token_vectors_from is not None or "token_vectors" in config.model_fields_set:
            raise TeacherError(f"{message}; leave --token-vectors out")
        console.warn(f"{message}; the set is without them")
        return record

    def vectors() -> Vectors:
        stored = read_token_vectors(old.root, old.record) if old is not None else None
        return stored.vector_VW if stored is not None and stored.speaker == speaker else ask()

    def ask() -> Floats:
        return _ask(encoder or teacher, record, max_tokens)

    return with_token_vectors(root, record, vectors, speaker)


def add_encoders_token_vectors(root: Path, record: SetRecord, encoder: SentenceEncoder, max_tokens: int) -> SetRecord:
    """Puts what an encoder says of its vocabulary into its set of sentences; what it has stays.

    Call it inside `inference_mode`, in one process.

    Args:
        root: the set's folder.
        record: its record, verified.
        encoder: its teacher, on its device; of its states the mean is taken, whatever is stored of sentences.
        max_tokens: most tokens per batch.

    Returns:
        The record on disk.

    Raises:
        TeacherError: if a vector is not finite.
    """
    speaker = replace(encoder, pooling="mean")
    return with_token_vectors(root, record, lambda: _ask(speaker, record, max_tokens), _speaker(speaker))


def _speaker(encoder: SentenceEncoder) -> TokenVectorSource:
    return TokenVectorSource(layer=encoder.model.config.num_hidden_layers, encoder=teacher_record(encoder))


def _ask(speaker: Teacher | SentenceEncoder, record: SetRecord, max_tokens: int) -> Floats:
    size = record.tokenizer.vocabulary_size
    with console.progress(size, "teacher: vocabulary") as steps:
        return token_vectors(speaker, size, max_tokens, steps.advance)
