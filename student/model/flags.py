"""The settings of a student's encoder, one class for each ``--embedding``.

The module does not import torch.
"""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.settings import Settings

EmbeddingKind = Literal["hybrid", "cmow", "cbow", "recurrent", "lstm", "biattentive", "aligned", "bert"]
PoolingKind = Literal["sum", "sum+max"]
PoolerKind = Literal["mean-cls"]


class EncoderSettings(Settings):
    """The flag of all encoders, which chooses one."""

    panel: ClassVar = "What the student is made of"
    helps: ClassVar = {
        "embedding": "Encoder: hybrid (matrices and vectors), cmow (ordered products of matrices), cbow (sums of "
        "vectors), recurrent (an element-wise recurrence), aligned (pairs, with attention between vectors), lstm, "
        "biattentive (LSTMs with attention), or bert "
        "(a few layers). Default: aligned for pairs, unless a flag of another encoder is given, otherwise hybrid."
    }
    embedding: EmbeddingKind = "hybrid"


class WithNoise(EncoderSettings):
    """Tables with initial noise of a given standard deviation. Tables of LSTMs are drawn from -0.25 to 0.25."""

    initializer_range: float = Field(0.01, ge=0, description="Standard deviation of the initial random tables.")


class WithVectors(EncoderSettings):
    """A vector for each token."""

    vector_size: int | None = Field(
        None,
        ge=1,
        description="Width of token vectors. Default: 400 for hybrid and recurrent, 784 for cbow, 200 for aligned, "
        "300 for lstm and biattentive, the teacher's for a bert.",
    )


class WithSums(WithVectors, WithNoise):
    """Vectors that are summed."""

    pooling: PoolingKind | None = Field(
        None,
        description="Pooling of vectors: sum, or sum and maximum. Default: sum+max if the head supports it.",
    )


class WithProducts(WithNoise):
    """A matrix for each token."""

    bidirectional: bool = Field(True, description="Also multiply a second set of matrices from the end to the start.")
    matrix_size: int | None = Field(
        None, ge=1, le=64, description="Rows and columns of a matrix. Default: 20 for hybrid, 28 for cmow."
    )


class Hybrid(WithProducts, WithSums):
    """Products of matrices and sums of vectors, side by side."""

    embedding: Literal["hybrid"] = "hybrid"


class Cmow(WithProducts):
    """Products of matrices."""

    embedding: Literal["cmow"] = "cmow"


class Cbow(WithSums):
    """Sums of vectors."""

    embedding: Literal["cbow"] = "cbow"


class Recurrent(WithVectors):
    """An element-wise recurrence over vectors."""

    embedding: Literal["recurrent"] = "recurrent"


class WithLstm(WithVectors):
    """LSTMs over vectors."""

    lstm_size: int | None = Field(
        None, ge=1, description="Width of each direction of an LSTM. Default: 150 for lstm, 256 for biattentive."
    )


class Lstm(WithLstm):
    """An LSTM in both directions."""

    embedding: Literal["lstm"] = "lstm"
    channels: Literal[1, 2] | None = Field(
        None, description="Number of embedding tables of an lstm. With 2, one is frozen. Default: 1."
    )


class Biattentive(WithLstm):
    """LSTMs with attention between both sentences."""

    embedding: Literal["biattentive"] = "biattentive"


class Aligned(WithVectors):
    """Attention between the vectors of both sentences, without layers."""

    embedding: Literal["aligned"] = "aligned"


class Bert(WithVectors, WithNoise):
    """A few layers of a BERT."""

    embedding: Literal["bert"] = "bert"
    num_hidden_layers: int | None = Field(None, ge=1, le=128, description="Number of layers of a bert. Default: 3.")
    num_attention_heads: int | None = Field(
        None, ge=1, description="Attention heads per layer of a bert. Default: the teacher's, or 12."
    )
    intermediate_size: int | None = Field(
        None, ge=1, description="Inner width of a bert's layers. Default: the teacher's, or 4 times --vector-size."
    )
    init_layers: str | None = Field(
        None,
        pattern=r"^[1-9]\d*(,[1-9]\d*)*$",
        description="Layers of the teacher that a bert starts from, counted from 1, such as 2,4,6. Default: evenly "
        "spaced.",
    )
    pooler: PoolerKind | None = Field(
        None,
        description="Pooler of a bert. mean-cls: the mean of all layers' states of [CLS], which supports other heads, "
        "but transformers cannot load the run. Default: BERT's own.",
    )


class _OfTexts(Settings):
    """The additional settings of sums and products for whole texts."""

    window_size: int | None = Field(
        None, ge=1, description="Window size in tokens. Longer texts are split into windows and averaged."
    )
    num_bigrams: int | None = Field(
        None,
        ge=0,
        le=2**20,
        description="Number of bigram embeddings. 0 disables them. Default: 16384 for up to 10,000 training rows, "
        "otherwise 0.",
    )


class HybridOfTexts(Hybrid, _OfTexts):
    """`Hybrid` for texts."""


class CmowOfTexts(Cmow, _OfTexts):
    """`Cmow` for texts."""


class CbowOfTexts(Cbow, _OfTexts):
    """`Cbow` for texts."""


AnyEncoder = HybridOfTexts | CmowOfTexts | CbowOfTexts | Recurrent | Lstm | Biattentive | Aligned | Bert
