"""What a student looks like and what its logits mean: ``config.json``."""

import json
from math import isqrt
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.config import parse_model
from pipeline.errors import ConfigError, IntegrityError, raise_all
from pipeline.tasks.target import Target
from pipeline.tasks.task import Metric
from student.config import EmbeddingFlags, HeadKind, Pairing, TableDtype, TrainConfig

FORMAT_VERSION = 2
DEFAULT_SIZES = {"hybrid": (20, 400), "cmow": (28, 0), "cbow": (0, 784)}
DEFAULT_MLP_SIZE = 1000

MIN_CNN_SIDE = 4  # what three convolutions leave several values of; batch norm needs them

PAIRING_WORDS = {
    "diffcat": "DiffCat, [u; w; |u-w|]",
    "compare": "concatenate-compare, [u; w; u*w; |u-w|]",
    "joint": "both sentences as one sequence",
}
HEAD_WORDS = {"linear": "linear probe", "mlp": "MLP", "cnn": "2D-CNN", "bilstm": "BiLSTM"}

Facts = dict[str, Any]  # what the task and its logit set decide of a StudentConfig
SpecialIds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class EncoderConfig(BaseModel):
    """What a token's and a sequence's representation are made of.

    Attributes:
        matrix_size: side of the matrices; 0 for none (CBOW).
        vector_size: size of the vectors; 0 for none (CMOW).
        table_dtype: how the embedding tables are stored.
        tokenizer_sha256: the tokenizer its ids belong to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocabulary_size: int = Field(ge=1)
    pad_id: int = Field(ge=0)
    tokenizer_sha256: str
    max_seq_length: int = Field(ge=1)
    matrix_size: int = Field(ge=0, le=64)
    vector_size: int = Field(ge=0)
    bidirectional: bool
    initializer_range: float = Field(0.01, ge=0)
    table_dtype: TableDtype = "float32"

    @model_validator(mode="after")
    def _embeds_something(self) -> Self:
        if not self.matrix_size and not self.vector_size:
            raise ValueError("matrix_size and vector_size are both 0: nothing would be embedded")
        return self


class StudentConfig(EncoderConfig):
    """Architecture of a student, and what its logits mean.

    Attributes:
        is_pair: whether it takes two sentences.
        pairing: how it brings two sentences together; of no meaning for one.
        special_ids: the tokens before, between and after two sentences read as one sequence (pairing ``joint``).
        hidden_size: width of the MLP or the LSTM; None for the LSTM means as wide as its input.
        metrics: the task's metrics.
    """

    format_version: int = FORMAT_VERSION
    task: str
    target: Target
    metrics: tuple[Metric, ...]
    is_pair: bool
    pairing: Pairing = "diffcat"
    special_ids: SpecialIds | None = None
    head: HeadKind = "mlp"
    hidden_size: int | None = Field(DEFAULT_MLP_SIZE, ge=1)
    token_dropout: float = Field(0.0, ge=0, lt=1)
    hidden_dropout: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head == "cnn" and self.vector_size not in (0, self.side**2):
            raise ValueError(f"the cnn head needs vectors of {self.side} x {self.side}, not of {self.vector_size}")
        if self.head == "cnn" and self.side < MIN_CNN_SIDE:
            raise ValueError(f"the cnn head needs a side of at least {MIN_CNN_SIDE}, not {self.side}")
        if self.head == "mlp" and self.hidden_size is None:
            raise ValueError("the mlp head needs a hidden_size")
        if self.is_pair and self.pairing == "joint" and self.special_ids is None:
            raise ValueError("pairing 'joint' needs special_ids")
        return self

    @property
    def num_sequences(self) -> int:
        """How many sequences of ids it reads per input."""
        return 2 if self.is_pair and self.pairing != "joint" else 1

    @property
    def side(self) -> int:
        """Side of the square that a part of the representation is laid out in by the CNN head."""
        return self.matrix_size or isqrt(self.vector_size)


def summary(config: StudentConfig) -> dict[str, str]:
    """The architecture in words."""
    width = f", {config.hidden_size} wide" if config.hidden_size else ""
    words = {"embedding": embedding_summary(config)}
    if config.table_dtype != "float32":
        words["tables"] = f"{config.table_dtype} tables"
    if config.is_pair:
        words["pairs"] = PAIRING_WORDS[config.pairing]
    return words | {"head": HEAD_WORDS[config.head] + width}


def embedding_summary(config: EncoderConfig) -> str:
    """The embeddings in words."""
    parts = []
    if config.vector_size:
        parts.append(f"sums of vectors of {config.vector_size}")
    if config.matrix_size:
        ways = "both ways" if config.bidirectional else "left to right"
        parts.append(f"products of {config.matrix_size} x {config.matrix_size} matrices, {ways}")
    name = {(True, True): "Hybrid", (False, True): "CMOW", (True, False): "CBOW"}
    return f"{name[config.vector_size > 0, config.matrix_size > 0]}: {' and '.join(parts)}"


def design(flags: TrainConfig, facts: Facts) -> StudentConfig:
    """The architecture that the flags ask for, for a task with these facts.

    Raises:
        ConfigError: naming every flag that does not fit the others or the task.
    """
    matrix_size, vector_size = DEFAULT_SIZES[flags.embedding]
    if flags.vector_size is None and flags.embedding == "hybrid" and flags.head == "cnn" and flags.matrix_size:
        vector_size = flags.matrix_size**2
    raise_all(ConfigError, "wrong flags", _problems(flags, facts))
    hidden_size = flags.hidden_size or (DEFAULT_MLP_SIZE if flags.head == "mlp" else None)
    joint = facts["is_pair"] and flags.pairing == "joint"
    values = facts | {
        "pairing": flags.pairing,
        "special_ids": facts["special_ids"] if joint else None,
        "matrix_size": flags.matrix_size or matrix_size,
        "vector_size": flags.vector_size or vector_size,
        "bidirectional": flags.bidirectional and flags.embedding != "cbow",
        "head": flags.head,
        "hidden_size": hidden_size,
        "token_dropout": flags.token_dropout,
        "hidden_dropout": flags.hidden_dropout,
        "initializer_range": flags.initializer_range,
    }
    return parse_model(StudentConfig, values, "wrong flags")


def size_problems(flags: EmbeddingFlags) -> list[str]:
    """Which sizes were given that the embedding has not."""
    problems = []
    matrix_size, vector_size = DEFAULT_SIZES[flags.embedding]
    if flags.matrix_size is not None and not matrix_size:
        problems.append(f"--matrix-size: --embedding {flags.embedding} has none")
    if flags.vector_size is not None and not vector_size:
        problems.append(f"--vector-size: --embedding {flags.embedding} has none")
    return problems


def _problems(flags: TrainConfig, facts: Facts) -> list[str]:
    problems = size_problems(flags)
    if flags.hidden_size is not None and flags.head in ("linear", "cnn"):
        problems.append(f"--hidden-size: --head {flags.head} has none")
    if facts["is_pair"] and flags.pairing == "joint" and facts["special_ids"] is None:
        problems.append("--pairing joint: the tokenizer adds no tokens between two sentences")
    if facts["target"].kind == "score" and flags.temperature != 1:
        problems.append("--temperature: a score has none; it is for labels and bins")
    if facts["target"].kind == "score" and flags.soft_loss != "kl":
        problems.append("--soft-loss: a score has its own, the squared error")
    if flags.soft_loss == "mse" and flags.temperature != 1:
        problems.append("--temperature: --soft-loss mse has none")
    return problems


def read_config(path: Path) -> StudentConfig:
    """Reads a ``config.json`` of this or an earlier format version.

    Raises:
        IntegrityError: if it is missing or damaged, or of a newer format.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.get("kind") == "mlm":
            raise IntegrityError(f"{path.parent}: a pretrained student, without a task; train one --init-from it")
        version = values.get("format_version")
        if version not in (1, FORMAT_VERSION):
            raise IntegrityError(f"{path}: format version {version!r}; this release reads versions 1 and 2")
        # version 1 lacks fields; their defaults are what it was
        return parse_model(StudentConfig, values | {"format_version": FORMAT_VERSION}, str(path))
    except FileNotFoundError as error:
        raise IntegrityError(f"{path.parent}: not a student: it has no {path.name}") from error
    except (OSError, ValueError, TypeError, AttributeError, ConfigError) as error:
        raise IntegrityError(f"{path}: not a student's config: {error}") from error
