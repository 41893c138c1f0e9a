"""The architecture of a student and the meaning of its logits: ``config.json``."""

from dataclasses import replace
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
from student.encoders.bert_shape import BertShape
from student.encoders.encoder import EncoderShape, LstmShape
from student.encoders.kinds import ENCODERS
from student.model.disk_rounding import MOST_WIDENED
from student.model.flags import EmbeddingKind, PoolerKind, PoolingKind
from student.model.heads import HEADS, PAIRINGS, HeadShape
from student.pretrain_settings import VectorMap
from student.settings import HeadKind, PairingKind, TableDtype, Weights

# Sizes beyond this limit come from damaged or hostile files: real vocabularies have at most a million tokens.
FORMAT_VERSION, MAX_SIZE = 1, 2**22
# Attention between sentences stores L² numbers a pair, and 256 pairs of 1,024 tokens take some gigabytes.
MOST_COMPARED = 1024
# transformers ignores unknown keys of a ``config.json``, so the student's own settings are stored under one.
BERT_KEY = "distill"
# The fields of a StudentConfig that follow from the task and its set, and not from flags.
Facts = dict[str, Any]
SpecialIds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
PRETRAINED_ONE = "a pretrained student without a task. Train a student that starts from it (--init)"


class EncoderConfig(BaseModel):
    """The architecture of an encoder.

    Attributes:
        embedding: the key in `ENCODERS`.
        matrix_size: side of the matrices, or 0 for none (CBOW).
        vector_size: size of the vectors, or 0 for none (CMOW).
        pooling: whether the features contain the vectors' maxima in addition to their sum.
        window_size: tokens per window. The features of longer texts are joined from windows. None: no windows.
        num_bigrams: the number of pairs of neighbouring tokens with a vector.
        bigram_size: the width of these vectors.
        lstm: the sizes of LSTMs, or None for other encoders.
        bert: the sizes of a BERT's layers, which are ``vector_size`` wide, or None for others.
        pooler: the pooler of a BERT's states. None: BERT's own, the tanh of a linear layer on the last state.
        initializer_range: standard deviation of the initial noise of sums and products.
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
    embedding: EmbeddingKind
    matrix_size: int = Field(ge=0, le=64)
    vector_size: int = Field(ge=0, le=MAX_SIZE)
    bidirectional: bool
    pooling: PoolingKind = "sum"
    window_size: int | None = Field(None, ge=1)
    num_bigrams: int = Field(0, ge=0, le=MAX_SIZE)
    bigram_size: int = Field(0, ge=0, le=MAX_SIZE)
    lstm: LstmShape | None = None
    bert: BertShape | None = None
    pooler: PoolerKind | None = None
    initializer_range: float = Field(0.01, ge=0)
    table_dtype: TableDtype = "float32"
    used_rows: int | None = Field(None, ge=1)
    weights: Weights = "float32"

    @model_validator(mode="after")
    def _has_its_sizes(self) -> Self:
        kind = ENCODERS[self.embedding]
        parts = {"matrix_size": "matrix_size", "vector_size": "vector_size", "lstm": "lstm_size"}
        for name, size in parts.items():
            if bool(getattr(self, name)) != (size in kind.sizes):
                raise ValueError(f"{name} is {getattr(self, name)}, which does not fit embedding {self.embedding!r}")
        # Checks are repeated here although flags were checked, because a config may come from elsewhere.
        if self.pooling != "sum" and not (self.vector_size and kind.has_sums):
            raise ValueError(f"pooling is {self.pooling!r}, and embedding {self.embedding!r} has no sums of vectors")
        if not kind.has_sums and (self.window_size is not None or self.table_dtype != "float32"):
            raise ValueError(f"embedding {self.embedding!r} does not support windows and smaller tables")
        if self.weights == "rounded" and (not kind.can_be_rounded or self.table_dtype != "float32"):
            raise ValueError(f"weights are rounded, with {self.table_dtype} tables of embedding {self.embedding!r}")
        if bool(self.num_bigrams) != bool(self.bigram_size) or (self.num_bigrams and not kind.has_sums):
            raise ValueError(f"{self.num_bigrams} pairs of {self.bigram_size} for embedding {self.embedding!r}")
        if self.lstm and self.lstm.channels == 2 and "channels" not in kind.sizes:
            # Without this check a damaged config would fail later, with a message about missing weights.
            raise ValueError(f"embedding {self.embedding!r} has one channel")
        # Files from elsewhere can hold any numbers, and this one decides how much memory is reserved.
        if self.used_rows is not None and self.used_rows > self.num_tokens:
            raise ValueError(f"used_rows is {self.used_rows}, more than the {self.num_tokens} tokens")
        return self

    @model_validator(mode="after")
    def _is_a_bert_or_none(self) -> Self:
        if (self.bert is not None) != ENCODERS[self.embedding].is_bert:
            raise ValueError(f"bert: is required for embedding 'bert', and forbidden for {self.embedding!r}")
        if self.bert is None and self.pooler is not None:
            raise ValueError(f"pooler: applies to a bert, not to embedding {self.embedding!r}")
        if self.bert is None:
            return self
        problems = []
        # Every head has the same width, as in BERT.
        if self.vector_size % self.bert.num_attention_heads:
            problems.append(f"{self.bert.num_attention_heads} heads do not share a width of {self.vector_size} evenly")
        if self.max_seq_length > self.bert.max_position_embeddings:
            places = self.bert.max_position_embeddings
            problems.append(f"max_seq_length is {self.max_seq_length}, but there are positions for {places} tokens")
        if self.used_rows is not None:
            problems.append("a bert has no neutral rows, so used_rows is not counted")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="after")
    def _compares_no_more_than_memory_holds(self) -> Self:
        if ENCODERS[self.embedding].reads_pairs and self.max_seq_length > MOST_COMPARED:
            what = f"compares every token with every other one, and supports at most {MOST_COMPARED:,} tokens"
            raise ValueError(f"max_seq_length is {self.max_seq_length:,}, but embedding {self.embedding!r} {what}")
        return self

    @property
    def least_bytes(self) -> int:
        """The minimum size of the weights: the tables, and the layers after the representation."""
        is_float = self.table_dtype == "float32"
        if self.weights == "rounded":
            # Neutral rows take no bytes, so the bytes only limit how many there may be.
            of_token = self.matrix_size**2 + self.vector_size
            # Huffman's code needs a bit for each number of a layer at least.
            layers = ENCODERS[self.embedding].layer_numbers(self.vector_size) // 8
            return 4 * of_token * self.num_tokens // MOST_WIDENED + of_token * self._readers + layers
        # The estimate counts the smallest encoding, because it must never exceed the true size.
        of_tables = 4 * self.num_tokens if is_float else self.used_rows or self.num_tokens
        of_token = self.matrix_size**2 + self.vector_size
        if self.lstm is None:
            layers = ENCODERS[self.embedding].layer_numbers(self.vector_size)
            layers += self.bert.num_weights(self.vector_size) if self.bert else 0
            of_bigrams = self.bigram_size * (self.num_bigrams * (4 if is_float else 1) + 4 * self._readers)
            return 4 * layers + of_token * (of_tables + 4 * self._readers) + of_bigrams
        states = 2 * self.lstm.hidden_size
        return of_token * of_tables + 4 * states * (self._readers + 4 * self.lstm.hidden_size)

    @property
    def _readers(self) -> int:
        """The least number of outputs that read the whole representation."""
        return 0

    @property
    def num_tokens(self) -> int:
        """The number of tokens, including a padding past the vocabulary."""
        return max(self.vocabulary_size, self.pad_id + 1)

    @property
    def encoder_shape(self) -> EncoderShape:
        """The shape of its encoder. A padding id past the vocabulary gets its own row."""
        return EncoderShape(
            vocabulary_size=self.num_tokens,
            matrix_size=self.matrix_size,
            vector_size=self.vector_size,
            bidirectional=self.bidirectional,
            pad_id=self.pad_id,
            initializer_range=self.initializer_range,
            table_dtype=self.table_dtype,
            used_rows=self.used_rows,
            pooling=self.pooling,
            window_size=self.window_size,
            num_bigrams=self.num_bigrams,
            bigram_size=self.bigram_size,
            lstm=self.lstm,
            bert=self.bert,
            pooler=self.pooler,
        )


class StudentConfig(EncoderConfig):
    """Architecture of a student, and the meaning of its logits.

    Attributes:
        is_pair: whether an input has two sentences.
        pairing: the combination of two sentences. Ignored for single sentences.
        special_ids: the tokens before, between and after two sentences that are read as one sequence (pairing
            ``joint``). For a bert, also those before and after a single sentence.
        hidden_size: width of an MLP or LSTM head. None: an LSTM is as wide as its input.
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
    calibration: Calibration | None = None
    profile: InputProfile | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # All problems are collected, so that one message lists everything that must change.
        problems = HEADS[self.head].problems(self.head_shape)
        if HEADS[self.head].reads_tokens and self.pooling != "sum":
            problems.append(
                f"the {self.head} head reads the features of each token, which do not support pooling {self.pooling!r}"
            )
        if HEADS[self.head].reads_tokens and self.window_size is not None:
            problems.append(f"the {self.head} head reads single tokens and does not support windows")
        if (HEADS[self.head].reads_tokens or HEADS[self.head].reads_squares) and self.num_bigrams:
            problems.append(f"the {self.head} head does not support bigrams")
        if self.is_pair and self.pairing == "attention" and not ENCODERS[self.embedding].reads_pairs:
            problems.append(
                f"embedding {self.embedding!r} reads each sentence separately and does not support attention "
                "between them"
            )
        if self.is_joint and self.special_ids is None:
            problems.append(f"pairing {self.pairing!r} needs special_ids")
        problems += self._bert_problems() if self.bert is not None else []
        problems += self.calibration.problems(self.target) if self.calibration is not None else []
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _bert_problems(self) -> list[str]:
        problems = []
        if self.special_ids is None:
            problems.append("a bert needs special_ids")
        if (self.head != "dense" and self.pooler is None) or (self.is_pair and not self.is_joint):
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
    def encoder_shape(self) -> EncoderShape:
        """The shape of its encoder. Nothing follows a single sentence's separator."""
        if self.bert is None or self.special_ids is None:
            return super().encoder_shape
        _, between, after = self.special_ids
        # For single sentences the separator is the last token, so nothing behind it gets the second type.
        separator = next(iter(between or after), None)
        return replace(super().encoder_shape, separator_id=separator, dropout=self.hidden_dropout)

    @property
    def is_hugging_face(self) -> bool:
        """Whether `transformers` can load its folder."""
        return self.bert is not None and self.pooler is None

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
        head, kind = HEADS[self.head], ENCODERS[self.embedding]
        problems = head.problems(self.head_shape)
        if head.reads_tokens or head.reads_squares:
            problems.append(f"the {self.head} head reads whole sentences")
        if not kind.has_token_features or kind.is_bert:
            problems.append(f"embedding {self.embedding!r} has no output per word")
        if self.window_size is not None or self.pooling != "sum" or self.num_bigrams:
            problems.append("labelled words do not support windows, maxima and bigrams")
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
    is_one = config.is_joint if ids2 is not None else config.bert is not None
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
