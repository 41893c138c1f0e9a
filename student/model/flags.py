"""Flags of what a student is made of: its embeddings, LSTMs, layers; free of torch."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.config import Config

EmbeddingKind = Literal["hybrid", "cmow", "cbow", "lstm", "biattentive", "bert"]
PoolingKind = Literal["sum", "sum+max"]
PoolerKind = Literal["mean-cls"]
InitKind = Literal["teacher", "noise"]


class EmbeddingFlags(Config):
    """What the commands that train a student have in common: its embeddings."""

    panel: ClassVar = "What the student is made of"
    embedding: EmbeddingKind = Field(
        "hybrid",
        description="Ordered products of matrices, sums of vectors, or both; an LSTM, LSTMs with attention, or a few "
        "layers of a BERT.",
    )
    bidirectional: bool = Field(True, description="Multiply a second set of matrices from the end to the start.")
    matrix_size: int | None = Field(None, ge=1, le=64, description="Side of a matrix. (default: 20 hybrid, 28 cmow)")
    vector_size: int | None = Field(
        None,
        ge=1,
        description="Size of a vector. (default: 400 hybrid, 784 cbow, 300 lstm and biattentive, the teacher's bert)",
    )
    pooling: PoolingKind | None = Field(
        None,
        description="Sums of the vectors, or their maxima beside them. (default: sum+max where the head can read it)",
    )
    init: InitKind | None = Field(
        None,
        description="teacher: vectors start from the set's token vectors, a bert from its teacher's layers; noise: "
        "from random numbers. (default: teacher, of vectors if the set has them)",
    )
    initializer_range: float = Field(0.01, ge=0, description="Standard deviation of the tables' initial noise.")


class LstmFlags(Config):
    """The sizes of the encoders that are LSTMs."""

    panel: ClassVar = EmbeddingFlags.panel
    lstm_size: int | None = Field(
        None, ge=1, description="Width of each direction of an LSTM. (default: 150 lstm, 256 biattentive)"
    )
    channels: Literal[1, 2] | None = Field(
        None, description="Tables of an LSTM's vectors; of 2 one is frozen. (default: 1)"
    )


class BertFlags(Config):
    """The layers of ``--embedding bert``."""

    panel: ClassVar = EmbeddingFlags.panel
    num_hidden_layers: int | None = Field(None, ge=1, le=128, description="Layers of a bert. (default: 3)")
    num_attention_heads: int | None = Field(None, ge=1, description="Heads of a layer. (default: the teacher's, or 12)")
    intermediate_size: int | None = Field(
        None, ge=1, description="Inner width of a layer. (default: the teacher's, or 4 times --vector-size)"
    )
    init_layers: str | None = Field(
        None,
        pattern=r"^[1-9]\d*(,[1-9]\d*)*$",
        description="The teacher's layers that a bert starts from, from 1 on, like 2,4,6. (default: evenly spaced)",
    )
    pooler: PoolerKind | None = Field(
        None,
        description="mean-cls: a bert's representation is the mean of what all its layers make of [CLS]; its head may "
        "then be another, and its run is no folder that transformers reads. (default: BERT's own)",
    )
