"""Additions to a verified set: token vectors of its teacher or another encoder, and weights for initialization."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.arrays import Floats
from pipeline.errors import DistillError, FingerprintMismatchError, IntegrityError, TeacherError
from pipeline.files import link_or_copy, remove_temporaries, sha256
from pipeline.sets.card import write_card_and_record
from pipeline.sets.open import LogitSet
from pipeline.sets.record import FILE_NAME, SetRecord, changed, read_set_record
from pipeline.sets.signals.side_files import INIT_FILE, InitLayers, InitShape, TokenVectorSource
from pipeline.sets.token_vectors import Vectors, read_token_vectors, token_vectors_problem, with_token_vectors
from pipeline.tasks.task import Task
from pipeline.training.checkpoint import write_tensors
from teacher.dump.rows import teacher_record
from teacher.models.classifier import Teacher
from teacher.models.encoder import SentenceEncoder, has_states, load_encoder, token_vectors
from teacher.models.loaded import sentence_encoder_of
from teacher.settings import ITSELF, LabelLogits


def load_token_encoder(
    wanted: LabelLogits, task: Task, teacher: Teacher, max_seq_length: int
) -> SentenceEncoder | None:
    """Loads the encoder whose token vectors are stored, on the teacher's device, or None if the teacher's own are.

    It is the one in ``--token-vectors-from`` or the task's manifest. By default, it is the sentence encoder from which
    the teacher was fine-tuned, if that exists, but for pairs the teacher.

    Raises:
        DataError: if the one named cannot be found or read.
        TeacherError: if it is not an encoder, or has another vocabulary than the teacher.
    """
    # Pairs are aligned by default, which needs vectors of single tokens: from embeddings, MNLI scores two points more
    # than from the last states of a sentence encoder. See docs/experiments/sentence-vectors.md.
    by_default = ITSELF if task.is_pair else sentence_encoder_of(teacher.name)
    name = wanted.token_vectors_from or task.token_vectors_from or by_default
    if name is None or name == ITSELF or not wanted.token_vectors:
        return None
    try:
        encoder = load_encoder(name, None, max_seq_length, "mean")
        ours, theirs = teacher.tokenizer.get_vocab(), encoder.tokenizer.get_vocab()
        # Ids are the rows of the student's table, so a vector of another vocabulary would start a wrong token.
        if ours != theirs:
            different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
            raise TeacherError(
                f"token vectors of {encoder.name}: {len(different):,} tokens, such as {different[0]!r}, have other "
                f"ids than in the vocabulary of {teacher.name}, which students use"
            )
    except DistillError as error:
        if wanted.token_vectors_from is not None:
            raise
        console.warn(
            "token vectors are the teacher's own, because the encoder that it was fine-tuned from is not "
            f"available: {error}"
        )
        return None
    encoder.model.to(teacher.model.device)
    return encoder


def add_token_vectors(
    root: Path,
    record: SetRecord,
    wanted: LabelLogits,
    teacher: Teacher,
    encoder: SentenceEncoder | None,
    old: LogitSet | None,
    max_tokens: int,
) -> SetRecord:
    """Adds token vectors to a set. Existing ones stay, unless ``--token-vectors-from`` names another source.

    Call it inside `inference_mode`, in one process.
    """
    has_them = record.signals.token_vectors is not None and token_vectors_problem(root, record) is None
    # Existing vectors stay unless the user names another source: students may have started from them.
    if has_them and wanted.token_vectors_from is None:
        return record
    if encoder is not None:
        speaker = _speaker(encoder)
    elif has_states(teacher):
        speaker = TokenVectorSource()
    else:
        message = f"teacher {teacher.name}: {type(teacher.model).__name__} returns no hidden states for token vectors"
        if wanted.token_vectors_from is not None or "token_vectors" in wanted.model_fields_set:
            raise TeacherError(f"{message}. Remove --token-vectors.")
        console.warn(f"{message}. The set does not have them")
        return record

    def vectors() -> Vectors:
        stored = read_token_vectors(old.root, old.record) if old is not None else None
        if stored is not None and stored.speaker == speaker:
            return stored.vector_VW
        return _vectors(encoder or teacher, record, max_tokens)

    return with_token_vectors(root, record, vectors, speaker)


def add_encoders_token_vectors(root: Path, record: SetRecord, encoder: SentenceEncoder, max_tokens: int) -> SetRecord:
    """Adds an encoder's vectors of its vocabulary to its set of sentences. Existing ones stay.

    Vectors are the mean of its states, independent of the pooling of sentences. Call it inside `inference_mode`, in one
    process.
    """
    speaker = replace(encoder, pooling="mean")
    return with_token_vectors(root, record, lambda: _vectors(speaker, record, max_tokens), _speaker(speaker))


def _vectors(speaker: Teacher | SentenceEncoder, record: SetRecord, max_tokens: int) -> Floats:
    size = record.tokenizer.vocabulary_size
    with console.progress(size, "teacher: vocabulary") as steps:
        return token_vectors(speaker, size, max_tokens, steps.advance)


def _speaker(encoder: SentenceEncoder) -> TokenVectorSource:
    return TokenVectorSource(layer=encoder.model.config.num_hidden_layers, encoder=teacher_record(encoder))


WHOLE = ("embeddings.", "pooler.")  # stored in addition to the chosen layers


def init_bytes(layers: Sequence[int], name: str, shape: Any) -> int:
    """Returns the size of layers' weights of a teacher with this transformers config, or 0 without layers."""
    if not layers:
        return 0
    activation = getattr(shape, "hidden_act", "another activation")
    # Students implement only BERT with GELU. Weights of another architecture would load and compute something else.
    if shape.model_type != "bert" or activation != "gelu":
        raise TeacherError(
            f"teacher {name}: --keep init only supports BERTs with GELU, but its model_type is "
            f"{shape.model_type!r} with {activation}. Remove the flag."
        )
    return _shape(shape).num_bytes(len(layers))


def check_same_init(root: Path, layers: tuple[int, ...]) -> None:
    """Raises FingerprintMismatchError if the set in ``root`` has weights of other layers than requested."""
    is_there = (root / INIT_FILE).exists() and (root / FILE_NAME).exists()
    recorded = read_set_record(root).signals.init if is_there else None
    if recorded is not None and layers and layers != recorded.layers:
        there, now = (",".join(map(str, numbers)) for numbers in (recorded.layers, layers))
        raise FingerprintMismatchError(
            f"{root} contains weights of layers {there}, not of {now}, and students may have started from "
            f"them\nRepeat the command with --keep init={there} or without it, or remove {INIT_FILE}"
        )


def add_init_layers(
    root: Path,
    record: SetRecord | None,
    wanted: tuple[int, ...],
    teacher: Teacher,
    old: LogitSet | None,
    is_alone: bool,
) -> SetRecord | None:
    """Adds weights to a verified set: the requested ones, lost ones, or those of an old set."""
    if record is None or record.state != "verified":
        return record
    recorded, theirs = record.signals.init, old.record.signals.init if old is not None else None
    # The set's own layers take precedence over those of the set that it extends.
    known = recorded or theirs
    layers = wanted or (known.layers if known else ())
    if not layers or (recorded is not None and recorded.layers == layers and _is_there(root, recorded)):
        return record
    if old is not None and theirs is not None and theirs.layers == layers and _is_there(old.root, theirs):
        init = theirs
        if not _is_there(root, init):
            (root / INIT_FILE).unlink(missing_ok=True)
            link_or_copy(old.root / INIT_FILE, root / INIT_FILE)
    else:
        path, chosen = root / INIT_FILE, (*WHOLE, *(f"encoder.layer.{layer - 1}." for layer in layers))
        weights = teacher.model.base_model.state_dict().items()
        write_tensors(path, {name: w.float().cpu().contiguous() for name, w in weights if name.startswith(chosen)})
        shape = _shape(teacher.model.config)
        init = InitLayers(layers=layers, shape=shape, bytes=path.stat().st_size, sha256=sha256(path))
    # With several jobs, a temporary file may be one that another job is writing.
    if is_alone:
        remove_temporaries(root)
    # The record is written after the file, so a kill in between leaves an unrecorded file that is written again.
    told = changed(record, signals=record.signals.model_copy(update={"init": init}))
    write_card_and_record(root, told)
    return told


def _is_there(root: Path, recorded: InitLayers) -> bool:
    try:
        recorded.check_files(root)
    except IntegrityError:
        return False
    return True


def _shape(config: Any) -> InitShape:
    return InitShape(**{name: getattr(config, name) for name in InitShape.model_fields})
