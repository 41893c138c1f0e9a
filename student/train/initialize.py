"""What a student starts from: another one, its teacher's token vectors, or noise."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.files import sha256
from pipeline.sets.record import SetRecord
from student.model.architecture import EncoderConfig, StudentConfig
from student.model.config_file import read_encoder_config, why_none
from student.model.embeddings import MatrixEncoder
from student.model.encoder import Encoder
from student.model.encoders import ENCODERS
from student.model.flags import EmbeddingFlags
from student.model.model import Student
from student.model.weights import CONFIG_FILE, ENCODER, WEIGHTS_FILE, Tensors, read_weights

SAME = ("tokenizer_sha256", "matrix_size", "vector_size", "bidirectional", "lstm", "bert", "table_dtype")
SAME_HEAD = ("task", "target", "is_pair", "pairing", "embedding", "pooling", "bigram_size", "head", "hidden_size")
HEAD, BIGRAMS = "head.", "bigrams."


def starts_from_teacher(flags: EmbeddingFlags, root: Path, record: SetRecord) -> bool:
    """Whether a student's vectors start from the token vectors of the set in ``root``.

    Raises:
        ConfigError: if they shall, and there are none.
    """
    if ENCODERS[flags.embedding].is_bert:
        return False
    has_vectors = record.signals.token_vectors is not None
    if flags.init == "teacher" and not has_vectors:
        advice = f"repeat its command to add them ({record.command}), or use --init noise"
        if record.teacher.is_imported:
            advice = "its answers were imported; use --init noise"
        raise ConfigError(f"--init teacher: {root} has no token vectors; {advice}")
    return has_vectors and flags.init != "noise" and "vector_size" in ENCODERS[flags.embedding].sizes


def source_sha256(run: Path | None, config: EncoderConfig) -> str | None:
    """SHA-256 of the weights to start from, for the record of a run; None without ``run``, or if those are a BERT's.

    Raises:
        ConfigError: if the folder holds no weights, or naming every way in which its embeddings differ.
        IntegrityError: if the folder holds no student.
    """
    if run is None or config.bert is not None:
        return None
    if not (run / WEIGHTS_FILE).is_file():
        raise ConfigError(f"--init-from {why_none(run / WEIGHTS_FILE)}")
    source = read_encoder_config(run / CONFIG_FILE)
    problems = [
        f"{name} is {getattr(source, name)!r} there and {getattr(config, name)!r} here"
        for name in SAME
        if getattr(source, name) != getattr(config, name)
    ]
    if ENCODERS[source.embedding].make is not ENCODERS[config.embedding].make:
        problems.append(f"it is of --embedding {source.embedding} there and {config.embedding} here")
    raise_all(ConfigError, f"--init-from {run}: its embeddings do not fit", problems)
    return sha256(run / WEIGHTS_FILE)


def copy_embeddings(run: Path, encoder: Encoder) -> None:
    """Copies the encoder of the student in ``run`` into another of the same embeddings.

    Which pairs of tokens have vectors stays as it is: those that ``run`` has take over its own.

    Raises:
        IntegrityError: if the file is damaged or holds other tables.
    """
    own = encoder.bigrams if isinstance(encoder, MatrixEncoder) else None

    def with_own_pairs(tensors: Tensors) -> Tensors:
        pairs_K2, vectors_KG = tensors.pop(f"{BIGRAMS}pairs_K2", None), tensors.pop(f"{BIGRAMS}table.weight", None)
        if own is None:
            return tensors
        if pairs_K2 is not None and vectors_KG is not None:
            own.take_over(pairs_K2, vectors_KG)
        return tensors | {BIGRAMS + name: tensor for name, tensor in own.state_dict().items()}

    _copy(run, ENCODER, encoder, with_own_pairs)


def has_head_for(run: Path, config: StudentConfig) -> bool:
    """Whether the head of the student in ``run`` is one of the same task and shape."""
    source = read_encoder_config(run / CONFIG_FILE)
    return isinstance(source, StudentConfig) and all(getattr(source, n) == getattr(config, n) for n in SAME_HEAD)


def copy_head(run: Path, student: Student) -> None:
    """Copies the head of the student in ``run`` into one for which it `has_head_for`.

    Raises:
        IntegrityError: if the file is damaged or holds another head.
    """
    _copy(run, HEAD, student.head)


def _copy(run: Path, part: str, module: nn.Module, changed: Callable[[Tensors], Tensors] = dict) -> None:
    tensors = {name.removeprefix(part): tensor for name, tensor in read_weights(run, part).items()}
    try:
        with torch.no_grad():
            module.load_state_dict(changed(tensors))
    except (RuntimeError, ValueError) as error:
        raise IntegrityError(f"{run / WEIGHTS_FILE}: not the weights of a student: {error}") from error
