"""What a student's encoder is made of: one class of settings for each ``--embedding``; free of torch."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.settings import Settings

EmbeddingKind = Literal["hybrid", "cmow", "cbow", "lstm", "biattentive", "bert"]
PoolingKind = Literal["sum", "sum+max"]
PoolerKind = Literal["mean-cls"]
InitKind = Literal["teacher", "noise"]


class EncoderSettings(Settings):
    """What all encoders have in common: the flag that chooses one."""

    panel: ClassVar = "What the student is made of"
    helps: ClassVar = {
        "embedding": "Ordered products of matrices, sums of vectors, or both; an LSTM, LSTMs with attention, or a few "
        "layers of a BERT."
    }
    embedding: EmbeddingKind = "hybrid"


class WithNoise(EncoderSettings):
    """Tables that start from noise of a size of one's own choice; LSTMs' are drawn from -0.25 to 0.25."""

    initializer_range: float = Field(0.01, ge=0, description="Standard deviation of the tables' initial noise.")


class WithVectors(EncoderSettings):
    """A vector for each token."""

    vector_size: int | None = Field(
        None,
        ge=1,
        description="Size of a vector. (default: 400 hybrid, 784 cbow, 300 lstm and biattentive, the teacher's bert)",
    )


class WithSums(WithVectors, WithNoise):
    """Vectors that are summed."""

    pooling: PoolingKind | None = Field(
        None,
        description="Sums of the vectors, or their maxima beside them. (default: sum+max where the head can read it)",
    )


class WithProducts(WithNoise):
    """A matrix for each token."""

    bidirectional: bool = Field(True, description="Multiply a second set of matrices from the end to the start.")
    matrix_size: int | None = Field(None, ge=1, le=64, description="Side of a matrix. (default: 20 hybrid, 28 cmow)")


class Hybrid(WithProducts, WithSums):
    """Products of matrices and sums of vectors, side by side."""

    embedding: Literal["hybrid"] = "hybrid"


class Cmow(WithProducts):
    """Products of matrices."""

    embedding: Literal["cmow"] = "cmow"


class Cbow(WithSums):
    """Sums of vectors."""

    embedding: Literal["cbow"] = "cbow"


class WithLstm(WithVectors):
    """LSTMs over vectors."""

    lstm_size: int | None = Field(
        None, ge=1, description="Width of each direction of an LSTM. (default: 150 lstm, 256 biattentive)"
    )


class Lstm(WithLstm):
    """An LSTM that reads both ways."""

    embedding: Literal["lstm"] = "lstm"
    channels: Literal[1, 2] | None = Field(
        None, description="Tables of an LSTM's vectors; of 2 one is frozen. (default: 1)"
    )


class Biattentive(WithLstm):
    """LSTMs of which each sentence's attends to the other's."""

    embedding: Literal["biattentive"] = "biattentive"


class Bert(WithVectors, WithNoise):
    """A few layers of a BERT."""

    embedding: Literal["bert"] = "bert"
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


class _OfTexts(Settings):
    """What sums and products of whole texts have beside those of masked words."""

    window_size: int | None = Field(
        None, ge=1, description="Read longer texts by windows of so many tokens, and average what they give."
    )
    num_bigrams: int | None = Field(
        None,
        ge=0,
        le=2**20,
        description="How many pairs of neighbouring tokens have a vector of their own: the most frequent that several "
        "training rows have. (default: 16384 up to 10,000 training rows, where sums and products are read whole)",
    )


class HybridOfTexts(Hybrid, _OfTexts):
    """`Hybrid` that reads texts."""


class CmowOfTexts(Cmow, _OfTexts):
    """`Cmow` that reads texts."""


class CbowOfTexts(Cbow, _OfTexts):
    """`Cbow` that reads texts."""


AnyEncoder = HybridOfTexts | CmowOfTexts | CbowOfTexts | Lstm | Biattentive | Bert
