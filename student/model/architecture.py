"""The architecture of a student and the meaning of its logits: ``config.json``."""

from math import isqrt
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.arrays import Ragged, side_by_side
from pipeline.sets.record_parts import KindName
from pipeline.tasks.target import Target
from pipeline.tasks.task import OUTSIDE, Metric
from pipeline.tasks.temperature import Calibration
from pipeline.tasks.text_drift import InputProfile
from student.encoders.specs import BIGRAM_SIZE, MAX_SIZE, AnyEncoder, Bert, EmbeddingKind, EncoderSpec, Sums
from student.model.disk_rounding import MOST_WIDENED
from student.model.heads import HEADS, PAIRINGS, HeadShape
from student.model.ngrams import NgramSizes
from student.pretrain_settings import VectorMap
from student.settings import HeadKind, PairingKind, TableDtype, Weights

FORMAT_VERSION = 1
# transformers ignores unknown keys of a ``config.json``, so the student's own settings are stored under one.
BERT_KEY = "distill"
# The fields of a StudentConfig that follow from the task and its set, and not from flags.
Facts = dict[str, Any]
SpecialIds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
PRETRAINED_ONE = "a pretrained student without a task. Train a student that starts from it (--init)"


class EncoderConfig(BaseModel):
    """The architecture of an encoder.

    Attributes:
        encoder: its specification.
        table_dtype: the type of the stored embedding tables.
        used_rows: the number of tokens with a row that is not neutral, including the padding: they were trained, or
            did not start from noise. Tables of types other than float32 have no row for the other tokens.
            None: not counted.
        weights: the format of the weights on disk. In memory they are float32.
        tokenizer_sha256: the hash of its tokenizer.
        rows: the kind of its training rows.
        not_for_texts: its description, for a command that needs a student of whole texts.
    """

    rows: ClassVar[KindName]
    not_for_texts: ClassVar[str]

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocabulary_size: int = Field(ge=1, le=MAX_SIZE)
    pad_id: int = Field(ge=0, le=MAX_SIZE)
    tokenizer_sha256: str
    max_seq_length: int = Field(ge=1, le=MAX_SIZE)
    encoder: AnyEncoder = Field(discriminator="embedding")
    table_dtype: TableDtype = "float32"
    used_rows: int | None = Field(None, ge=1)
    weights: Weights = "float32"

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        # Checks are repeated here although flags were checked, because a config may come from elsewhere.
        problems, is_float = self.encoder.problems(self.max_seq_length), self.table_dtype == "float32"
        if not is_float and not isinstance(self.encoder, Sums):
            problems.append(f"embedding {self.embedding!r} does not support smaller tables")
        if self.weights == "rounded" and not (is_float and self.encoder.can_be_rounded):
            problems.append(f"weights are rounded, with {self.table_dtype} tables of embedding {self.embedding!r}")
        # Files from elsewhere can hold any numbers, and this one decides how much memory is reserved.
        if self.used_rows is not None and self.used_rows > self.num_tokens:
            problems.append(f"used_rows is {self.used_rows}, more than the {self.num_tokens} tokens")
        if self.used_rows is not None and isinstance(self.encoder, Bert):
            problems.append("a bert has no neutral rows, so used_rows is not counted")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def least_bytes(self) -> int:
        """The minimum size of the weights: the tables, and the layers after the representation."""
        of_token, layers = self.encoder.num_of_token, self.encoder.num_of_layers
        if self.weights == "rounded":
            # Neutral rows take no bytes, so the bytes only limit how many there may be. Huffman's code needs a bit for
            # each number of a layer at least.
            return 4 * of_token * self.num_tokens // MOST_WIDENED + of_token * self._readers + layers // 8
        # The estimate counts the smallest encoding, because it must never exceed the true size.
        is_float = self.table_dtype == "float32"
        of_tables = of_token * (4 * self.num_tokens if is_float else self.used_rows or self.num_tokens)
        pairs = (self.encoder.num_bigrams or 0) * BIGRAM_SIZE if isinstance(self.encoder, Sums) else 0
        of_layers = 4 * (layers + self.encoder.least_features * self._readers)
        return of_tables + pairs * (4 if is_float else 1) + of_layers

    @property
    def _readers(self) -> int:
        """The least number of outputs that read the whole representation."""
        return 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens, including a padding past the vocabulary."""
        return max(self.vocabulary_size, self.pad_id + 1)

    @property
    def embedding(self) -> EmbeddingKind:
        """The name of the encoder."""
        return self.encoder.embedding

    @property
    def matrix_size(self) -> int:
        """The side of the matrices, or 0 without matrices."""
        return getattr(self.encoder, "matrix_size", 0)

    @property
    def vector_size(self) -> int:
        """The width of the vectors, or 0 without vectors."""
        return getattr(self.encoder, "vector_size", 0)


def token_reader_problems(encoder: EncoderSpec, reader: str) -> list[str]:
    """Returns the reasons why an encoder cannot serve a reader of every token's features."""
    problems = []
    if not encoder.has_token_features:
        problems.append(f"--embedding {encoder.embedding}: has no features per token, which {reader} needs")
    if getattr(encoder, "pooling", None) == "sum+max":
        problems.append(f"--pooling sum+max: {reader} reads the features of each token, which have no maxima")
    if getattr(encoder, "num_bigrams", None):
        problems.append(f"--num-bigrams: {reader} reads single tokens and does not support bigrams")
    if getattr(encoder, "window_size", None):
        problems.append(f"--window-size: {reader} reads single tokens and does not support windows")
    return problems


class StudentConfig(EncoderConfig):
    """Architecture of a student, and the meaning of its logits.

    Attributes:
        is_pair: whether an input has two sentences.
        pairing: the combination of two sentences. Ignored for single sentences.
        special_ids: the tokens before, between and after two sentences that are read as one sequence (pairing
            ``joint``). For a bert, also those before and after a single sentence.
        hidden_size: width of an MLP or LSTM head. None: an LSTM is as wide as its input.
        ngrams: the sizes of its n-gram part, or None without one.
        metrics: the task's metrics.
        calibration: what makes probabilities of its logits, fitted after its training.
        profile: what inputs were like that it was not trained on.
    """

    rows: ClassVar[KindName] = "examples"
    # The Hugging Face hub chooses its widget and search filter by this tag.
    pipeline_tag: ClassVar[str] = "text-classification"
    card_ending: ClassVar[str] = ""
    format_version: int = FORMAT_VERSION
    task: str
    target: Target
    metrics: tuple[Metric, ...]
    is_pair: bool
    pairing: PairingKind = "diffcat"
    special_ids: SpecialIds | None = None
    head: HeadKind = "mlp"
    hidden_size: int | None = Field(1000, ge=1, le=MAX_SIZE)
    token_dropout: float = Field(0.0, ge=0, lt=1)
    hidden_dropout: float = Field(ge=0, lt=1)
    ngrams: NgramSizes | None = None
    calibration: Calibration | None = None
    profile: InputProfile | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # All problems are collected, so that one message lists everything that must change.
        head, name = HEADS[self.head], f"the {self.head} head"
        problems = head.problems(self.head_shape)
        if head.reads_tokens:
            problems += token_reader_problems(self.encoder, name)
        if head.reads_squares and getattr(self.encoder, "num_bigrams", None):
            problems.append(f"--num-bigrams: {name} needs squares, but sums of pairs are not square")
        if self.is_pair and self.pairing == "attention" and not self.encoder.reads_pairs:
            problems.append(
                f"embedding {self.embedding!r} reads each sentence separately and does not support attention "
                "between them"
            )
        if self.is_joint and self.special_ids is None:
            problems.append(f"pairing {self.pairing!r} needs special_ids")
        problems += self._bert_problems(self.encoder) if isinstance(self.encoder, Bert) else []
        problems += self.calibration.problems(self.target) if self.calibration is not None else []
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _bert_problems(self, encoder: Bert) -> list[str]:
        problems = []
        if self.special_ids is None:
            problems.append("a bert needs special_ids")
        if (self.head != "dense" and encoder.pooler is None) or (self.is_pair and not self.is_joint):
            problems.append("a bert with BERT's pooler needs the head 'dense', and reads pairs as one sequence")
        if HEADS[self.head].reads_tokens:
            problems.append("a bert does not support heads that read tokens")
        # A BERT reads absolute positions, so dropping tokens would shift all later ones.
        if self.token_dropout:
            problems.append("a bert does not support token dropout")
        return problems

    @property
    def _readers(self) -> int:
        return self.hidden_size or 0

    @property
    def separator_id(self) -> int | None:
        """The token after which a bert's second sentence begins. Nothing follows that of a single sentence."""
        _, between, after = self.special_ids or ((), (), ())
        # For single sentences the separator is the last token, so nothing behind it gets the second type.
        return next(iter(between or after), None)

    @property
    def is_hugging_face(self) -> bool:
        """Whether `transformers` can load its folder."""
        return isinstance(self.encoder, Bert) and self.encoder.pooler is None

    @property
    def is_joint(self) -> bool:
        """Whether it reads two sentences as one sequence."""
        return self.is_pair and PAIRINGS[self.pairing].is_one

    @property
    def num_sequences(self) -> int:
        """The number of sequences of ids per input."""
        return 2 if self.is_pair and not self.is_joint else 1

    @property
    def side(self) -> int:
        """The side of the square into which the CNN head arranges a part of the representation."""
        return self.matrix_size or isqrt(self.vector_size)

    @property
    def head_shape(self) -> HeadShape:
        """The shape of its head."""
        return HeadShape(self.target.num_logits, self.hidden_size, self.side, self.vector_size, self.hidden_dropout)


class MaskedWordConfig(EncoderConfig):
    """Architecture of a pretrained student.

    Attributes:
        corpus: its corpus.
        num_outputs: V, the outputs of its head.
    """

    rows: ClassVar[KindName] = "masked_words"
    not_for_texts: ClassVar[str] = PRETRAINED_ONE
    kind: Literal["mlm"] = "mlm"
    format_version: Literal[1] = 1
    corpus: str
    num_outputs: int = Field(ge=1, le=MAX_SIZE)

    @property
    def _readers(self) -> int:
        return self.num_outputs


class SentenceConfig(EncoderConfig):
    """Architecture of a student that is pretrained on vectors of sentences.

    Attributes:
        subject: the task or the corpus of the sentences.
        width: H, the width of a vector.
        vector_map: the map from the representation to a vector.
    """

    rows: ClassVar[KindName] = "sentences"
    not_for_texts: ClassVar[str] = PRETRAINED_ONE
    kind: Literal["vectors"] = "vectors"
    format_version: Literal[1] = 1
    subject: str
    width: int = Field(ge=1, le=2**16)
    vector_map: VectorMap


class TokenLabelConfig(EncoderConfig):
    """Architecture of a student that labels words.

    Attributes:
        task: its task.
        target: the meaning of a token's logits.
        metrics: the task's metrics.
        hidden_size: width of an MLP head.
        calibration: what makes probabilities of its logits, fitted after its training.
        profile: what inputs were like that it was not trained on.
    """

    rows: ClassVar[KindName] = "token_labels"
    pipeline_tag: ClassVar[str] = "token-classification"
    card_ending: ClassVar[str] = ", which labels words and finds their spans"
    not_for_texts: ClassVar[str] = (
        "a student that labels words (type: token_labels), but this command needs a student of whole texts. "
        "See docs/labels.md"
    )
    # These constants let commands treat both kinds of task students alike.
    is_pair: ClassVar[bool] = False
    is_hugging_face: ClassVar[bool] = False
    num_sequences: ClassVar[int] = 1
    pairing: ClassVar[None] = None
    kind: Literal["words"] = "words"
    format_version: Literal[1] = 1
    task: str
    target: Target
    metrics: tuple[Metric, ...]
    head: HeadKind
    hidden_size: int | None = Field(None, ge=1, le=MAX_SIZE)
    hidden_dropout: float = Field(ge=0, lt=1)
    calibration: Calibration | None = None
    profile: InputProfile | None = None

    @model_validator(mode="after")
    def _reads_tokens(self) -> Self:
        head = HEADS[self.head]
        problems = head.problems(self.head_shape)
        if head.reads_tokens or head.reads_squares:
            problems.append(f"the {self.head} head reads whole sentences")
        problems += token_reader_problems(self.encoder, "a student of words")
        if isinstance(self.encoder, Bert):
            problems.append("embedding 'bert' has no output per word")
        if OUTSIDE not in self.target.names or not self.target.has_classes:
            problems.append("its labels are not labels of words")
        problems += self.calibration.problems(self.target) if self.calibration is not None else []
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def _readers(self) -> int:
        return self.hidden_size or 0

    @property
    def head_shape(self) -> HeadShape:
        """The shape of its head."""
        return HeadShape(self.target.num_logits, self.hidden_size, 0, self.vector_size, self.hidden_dropout)


TaskConfig = StudentConfig | TokenLabelConfig
Pretrained = MaskedWordConfig | SentenceConfig
# Keys are the ``kind`` in a config.json. Students of texts came first and have no such key, so their files still load.
CONFIGS: dict[str, type[EncoderConfig]] = {
    "mlm": MaskedWordConfig,
    "vectors": SentenceConfig,
    "words": TokenLabelConfig,
}


def sequences(config: StudentConfig, ids1: Ragged, ids2: Ragged | None = None) -> tuple[Ragged, ...]:
    """Returns the sequences that a student reads: one per sentence, or one for both if it reads them jointly.

    A bert also reads the special tokens around a single sentence.

    The padding token in a text is removed, too.
    """
    # A text that contains "[PAD]" must not gain a neutral token, since padding is also recognised by its id.
    sentences = [_without(config.pad_id, ids) for ids in (ids1, ids2) if ids is not None]
    is_one = config.is_joint if ids2 is not None else isinstance(config.encoder, Bert)
    if not is_one or config.special_ids is None:
        return tuple(sentences)
    before, between, after = (Ragged.repeated(ids, len(ids1.lengths)) for ids in config.special_ids)
    first, *second = sentences
    return (side_by_side(before, first, *(part for ids in second for part in (between, ids)), after),)


def _without(token: int, ids: Ragged) -> Ragged:
    is_kept_T = ids.flat != token
    if is_kept_T.all():
        return ids
    kept_before_S = np.concatenate([[0], np.cumsum(is_kept_T)])
    return Ragged(ids.flat[is_kept_T], kept_before_S[ids.offsets])
