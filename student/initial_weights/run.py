"""Initial weights of a student from another student in the folder of a run."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.file_names import CONFIG_FILE, WEIGHTS_FILE
from pipeline.files import sha256
from student.encoders.encoder import Encoder
from student.encoders.matrices import MatrixEncoder
from student.encoders.specs import Bert
from student.model.architecture import EncoderConfig, TaskConfig
from student.model.config_file import read_encoder_config, why_none
from student.model.weights import ENCODER, Tensors, read_weights

# Weights fit only an encoder of the same shape that reads the same token ids.
SAME = ("tokenizer_sha256", "table_dtype")
# These fields of an encoder change none of its tables. Bigrams that both students have are copied.
MAY_DIFFER = {"pooling", "window_size", "num_bigrams", "initializer_range"}
SAME_HEAD = ("task", "target", "is_pair", "pairing", "embedding", "head", "hidden_size")
HEAD, BIGRAMS = "head.", "bigrams."


def source_sha256(run: Path | None, config: EncoderConfig) -> str | None:
    """Returns the SHA-256 of the initial weights for the record of a run. None without ``run``, or for a BERT.

    Raises:
        ConfigError: if the folder contains no weights, or naming every difference of its embeddings.
        IntegrityError: if the folder holds no student.
    """
    if run is None or isinstance(config.encoder, Bert):
        return None
    if not (run / WEIGHTS_FILE).is_file():
        raise ConfigError(f"--init {why_none(run / WEIGHTS_FILE)}")
    source = read_encoder_config(run / CONFIG_FILE)
    # All differences are listed at once, so that one correction of the flags is enough.
    there, here = (
        {name: getattr(one, name) for name in SAME} | one.encoder.model_dump(exclude=MAY_DIFFER)
        for one in (source, config)
    )
    problems = [
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
        for name in there | here
        if there.get(name) != here.get(name)
    ]
    raise_all(ConfigError, f"--init {run}: its embeddings do not fit", problems)
    return sha256(run / WEIGHTS_FILE)


def copy_embeddings(run: Path, encoder: Encoder) -> None:
    """Copies the encoder of the student in ``run`` into another of the same embeddings.

    The set of bigrams does not change. Bigrams that also exist in ``run`` get its vectors.

    Raises:
        IntegrityError: if the file is damaged or contains other tables.
    """
    own = encoder.bigrams if isinstance(encoder, MatrixEncoder) else None

    def with_own_pairs(tensors: Tensors) -> Tensors:
        pairs_K2, vectors_KG = tensors.pop(f"{BIGRAMS}pairs_K2", None), tensors.pop(f"{BIGRAMS}table.weight", None)
        # A student without bigrams can start from one that has some: the sums are simply left out.
        if own is None:
            return tensors
        if pairs_K2 is not None and vectors_KG is not None:
            own.take_over(pairs_K2, vectors_KG)
        # A strict load needs every name, so the student's own pairs complete the tensors.
        return tensors | {BIGRAMS + name: tensor for name, tensor in own.state_dict().items()}

    copy_weights(run, ENCODER, encoder, with_own_pairs)


def has_head_for(run: Path, config: TaskConfig) -> bool:
    """Whether the student in ``run`` has a head of the same task and shape."""
    source = read_encoder_config(run / CONFIG_FILE)
    there, here = (
        [type(one), *(getattr(one, name, None) for name in SAME_HEAD)]
        + [getattr(one.encoder, name, None) for name in ("pooling", "bigram_size")]
        for one in (source, config)
    )
    return there == here


def copy_weights(run: Path, part: str, module: nn.Module, changed: Callable[[Tensors], Tensors] = dict) -> None:
    """Copies a part of the student in ``run``, such as its head, if it `has_head_for` the other.

    Raises:
        IntegrityError: if the file is damaged or contains another part.
    """
    tensors = {name.removeprefix(part): tensor for name, tensor in read_weights(run, part).items()}
    try:
        with torch.no_grad():
            module.load_state_dict(changed(tensors))
    except (RuntimeError, ValueError) as error:
        raise IntegrityError(f"{run / WEIGHTS_FILE}: not the weights of a student: {error}") from error
