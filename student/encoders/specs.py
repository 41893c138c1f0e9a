"""The specification of each encoder: its flags, its part of ``config.json``, and its properties.

Each field is written once. Flags, ``config.json`` and the settings in a run's record are read from these classes. The
module does not import torch, so that ``--help`` is quick. A new encoder is a class here, a file with its module, and a
line in `student.model.student.ENCODERS`.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline.settings import Settings

EmbeddingKind = Literal["hybrid", "cmow", "cbow", "recurrent", "lstm", "biattentive", "aligned", "bert"]
PoolingKind = Literal["sum", "sum+max"]
PoolerKind = Literal["mean-cls"]
# Sizes beyond this limit come from damaged or hostile files: real vocabularies have at most a million tokens.
MAX_SIZE = 2**22
# Attention between sentences stores L² numbers a pair, and 256 pairs of 1,024 tokens take some gigabytes.
MOST_COMPARED = 1024
# 16,384 bigrams raised the score on CoLA. See docs/experiments/bigrams.md. The number was fixed before that comparison,
# and the size was chosen together with it.
NUM_BIGRAMS, BIGRAM_SIZE = 2**14, 32

VectorSize = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_SIZE,
        description="Width of token vectors. Default: 400 for hybrid and recurrent, 784 for cbow, 200 for aligned, "
        "300 for lstm and biattentive, the teacher's for a bert.",
    ),
]
MatrixSize = Annotated[
    int, Field(ge=1, le=64, description="Rows and columns of a matrix. Default: 20 for hybrid, 28 for cmow.")
]
Bidirectional = Annotated[bool, Field(description="Also multiply a second set of matrices from the end to the start.")]
Pooling = Annotated[
    PoolingKind | None,
    Field(description="Pooling of vectors: sum, or sum and maximum. Default: sum+max if the head supports it."),
]
Noise = Annotated[float, Field(ge=0, description="Standard deviation of the initial random tables.")]
LstmSize = Annotated[
    int,
    Field(
        ge=1,
        le=2**16,
        description="Width of each direction of an LSTM. Default: 150 for lstm, 256 for biattentive.",
    ),
]


class EncoderSpec(Settings):
    """The common part of all encoders.

    Attributes:
        name: its name in cards.
        card: the first sentence of a card.
        default_head: the head, unless a flag chooses one.
        default_pairing: the pairing, unless a flag chooses one. ``attention`` if it reads both sentences at once.
        default_dropout: the dropout of the representation, unless a flag sets it.
        can_be_rounded: whether its weights may be rounded on disk. For LSTMs and BERTs the loss was not measured.
        has_token_features: whether it has features per token, which some heads and labelled words read.
        sums_vectors: whether sums of vectors are among its features, for which pretrained vectors were made.
    """

    panel: ClassVar = "What the student is made of"
    helps: ClassVar = {
        "embedding": "Encoder: hybrid (matrices and vectors), cmow (ordered products of matrices), cbow (sums of "
        "vectors), recurrent (an element-wise recurrence), aligned (pairs, with attention between vectors), lstm, "
        "biattentive (LSTMs with attention), or bert "
        "(a few layers). Default: recurrent for single texts, aligned for pairs, unless a flag of another encoder is "
        "given, otherwise hybrid."
    }
    name: ClassVar[str]
    card: ClassVar[str] = "A student of **{task}** without attention or layers"
    default_head: ClassVar[Literal["mlp", "dense"]] = "mlp"
    default_pairing: ClassVar[Literal["compare", "attention", "joint"]] = "compare"
    default_dropout: ClassVar[float] = 0.2
    can_be_rounded: ClassVar[bool] = False
    has_token_features: ClassVar[bool] = False
    sums_vectors: ClassVar[bool] = False
    embedding: EmbeddingKind = "hybrid"

    @property
    def has_vectors(self) -> bool:
        """Whether each token has a vector."""
        return "vector_size" in type(self).model_fields

    @property
    def reads_pairs(self) -> bool:
        """Whether it reads both sentences at once."""
        return self.default_pairing == "attention"

    @property
    def num_of_token(self) -> int:
        """How many numbers a token has in a table, or in all tables if there are several kinds."""
        return int(getattr(self, "matrix_size", 0)) ** 2 + int(getattr(self, "vector_size", 0))

    @property
    def num_of_layers(self) -> int:
        """The least number of weights in its layers, besides the tables."""
        return 0

    @property
    def least_features(self) -> int:
        """The least number of features of a sequence."""
        return self.num_of_token

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        raise NotImplementedError

    def problems(self, max_seq_length: int) -> list[str]:
        """Returns the reasons why it cannot read sequences of this length, or cannot be built."""
        if not self.reads_pairs or max_seq_length <= MOST_COMPARED:
            return []
        what = f"compares every token with every other one, and supports at most {MOST_COMPARED:,} tokens"
        advice = "Use another --embedding, or a set with shorter texts (teacher-dump --max-seq-length)"
        return [f"--embedding {self.embedding}: {what}, not {max_seq_length:,}. {advice}"]


class Sums(EncoderSpec):
    """Sums of vectors, products of matrices, or both. Only they have windows, bigrams and smaller tables."""

    can_be_rounded = True
    has_token_features = True
    sums_vectors = True
    initializer_range: Noise = 0.01
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

    @property
    def bigram_size(self) -> int:
        """The width of the vectors of bigrams, or 0 without bigrams."""
        return BIGRAM_SIZE if self.num_bigrams else 0

    @property
    def least_features(self) -> int:
        """The least number of features of a sequence."""
        return self.num_of_token + self.bigram_size

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        parts = []
        if isinstance(self, Hybrid | Cbow):
            pooled = "sums and maxima" if self.pooling == "sum+max" else "sums"
            parts.append(f"{pooled} of vectors of {self.vector_size}")
        if isinstance(self, Hybrid | Cmow):
            ways = "both ways" if self.bidirectional else "left to right"
            parts.append(f"products of {self.matrix_size} x {self.matrix_size} matrices, {ways}")
        if self.num_bigrams:
            parts.append(f"sums of vectors of {BIGRAM_SIZE} for {self.num_bigrams:,} pairs of neighbouring tokens")
        windows = f", averaged over windows of {self.window_size} tokens" if self.window_size else ""
        return " and ".join(parts) + windows


# Sizes are the paper's: 20 x 20 matrices and 400 numbers, or 28 x 28 = 784 for one part alone.
class Hybrid(Sums):
    """Products of matrices and sums of vectors, side by side."""

    name = "Hybrid"
    embedding: Literal["hybrid"] = "hybrid"
    bidirectional: Bidirectional = True
    matrix_size: MatrixSize = 20
    pooling: Pooling = None
    vector_size: VectorSize = 400


class Cmow(Sums):
    """Products of matrices."""

    name = "CMOW"
    embedding: Literal["cmow"] = "cmow"
    bidirectional: Bidirectional = True
    matrix_size: MatrixSize = 28


class Cbow(Sums):
    """Sums of vectors."""

    name = "CBOW"
    embedding: Literal["cbow"] = "cbow"
    pooling: Pooling = None
    vector_size: VectorSize = 784


class Recurrent(EncoderSpec):
    """An element-wise recurrence over vectors."""

    name = "Element-wise recurrence"
    card = "A student of **{task}** with an element-wise recurrence"
    can_be_rounded = True
    sums_vectors = True
    embedding: Literal["recurrent"] = "recurrent"
    vector_size: VectorSize = 400

    @property
    def state_size(self) -> int:
        """H, a third of the vectors' width."""
        return (self.vector_size + 2) // 3

    @property
    def num_of_layers(self) -> int:
        """The least number of weights in its layers, besides the tables."""
        return 4 * self.state_size * self.vector_size

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        states = f"states of {self.state_size} in each direction"
        return f"{states}, sums and maxima, over vectors of {self.vector_size}"


class Lstms(EncoderSpec):
    """LSTMs in both directions over vectors."""

    vector_size: VectorSize = 300
    lstm_size: LstmSize = 150

    @property
    def num_of_layers(self) -> int:
        """The least number of weights in its layers, besides the tables."""
        return 8 * self.lstm_size**2

    @property
    def least_features(self) -> int:
        """The least number of features of a sequence."""
        return 2 * self.lstm_size

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        return f"{self.lstm_size} wide in each direction, over vectors of {self.vector_size}"


class Lstm(Lstms):
    """One LSTM. Sizes are those of Tang et al. (2019): vectors of 300 numbers, 150 per direction."""

    name = "BiLSTM"
    card = "A student of **{task}** with LSTMs"
    has_token_features = True
    embedding: Literal["lstm"] = "lstm"
    channels: Literal[1, 2] = Field(
        1, description="Number of embedding tables of an lstm. With 2, one is frozen. Default: 1."
    )

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        if self.channels == 1:
            return super().summary
        return (
            f"{self.lstm_size} wide in each direction, over vectors of 2 x {self.vector_size}, of which one is frozen"
        )


class Biattentive(Lstms):
    """LSTMs with attention between both sentences. The paper has 256 numbers per direction (Liu et al. 2020)."""

    name = "Biattentive LSTM"
    card = "A student of **{task}** with LSTMs and attention between sentences"
    default_pairing = "attention"
    embedding: Literal["biattentive"] = "biattentive"
    lstm_size: LstmSize = 256


class Aligned(EncoderSpec):
    """Attention between the vectors of both sentences, without layers."""

    name = "Aligned pairs"
    card = "A student of **{task}** with attention between the token vectors of two sentences"
    default_pairing = "attention"
    can_be_rounded = True
    embedding: Literal["aligned"] = "aligned"
    # 100 numbers scored a point less on MNLI. See docs/experiments/aligned-pairs.md.
    vector_size: VectorSize = 200

    @property
    def num_of_layers(self) -> int:
        """The least number of weights in its layers, besides the tables."""
        return 2 * self.vector_size**2

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        return f"vectors of {self.vector_size}"


class Bert(EncoderSpec):
    """A few layers of a BERT. Sizes have Hugging Face's names, except for the width, ``vector_size``.

    Attributes:
        max_position_embeddings: the number of positions.
        type_vocab_size: the number of sentences that it distinguishes.
        layer_norm_eps: the number that each LayerNorm adds to the variance.
    """

    name = "BERT"
    card = "A BERT with few layers, a student of **{task}**"
    default_head = "dense"
    default_pairing = "joint"
    default_dropout = 0.1
    has_token_features = True
    no_flags = frozenset({"max_position_embeddings", "type_vocab_size", "layer_norm_eps"})
    embedding: Literal["bert"] = "bert"
    vector_size: VectorSize = 384
    initializer_range: Noise = 0.01
    # Three layers are those of the students in MKD and How to Distill your BERT. Heads and positions are BERT-base's.
    num_hidden_layers: int = Field(3, ge=1, le=128, description="Number of layers of a bert. Default: 3.")
    num_attention_heads: int = Field(
        12, ge=1, le=256, description="Attention heads per layer of a bert. Default: the teacher's, or 12."
    )
    intermediate_size: int | None = Field(
        None,
        ge=1,
        le=2**18,
        description="Inner width of a bert's layers. Default: the teacher's, or 4 times --vector-size.",
    )
    pooler: PoolerKind | None = Field(
        None,
        description="Pooler of a bert. mean-cls: the mean of all layers' states of [CLS], which supports other heads, "
        "but transformers cannot load the run. Default: BERT's own.",
    )
    max_position_embeddings: int = Field(512, ge=1, le=2**16)
    type_vocab_size: int = Field(2, ge=1, le=2**8)
    layer_norm_eps: float = Field(1e-12, gt=0, le=1)

    @property
    def inner_size(self) -> int:
        """The inner width of a layer."""
        return self.intermediate_size or 4 * self.vector_size

    @property
    def num_of_layers(self) -> int:
        """The number of weights in the matrices of all layers."""
        return self.num_hidden_layers * (4 * self.vector_size**2 + 2 * self.vector_size * self.inner_size)

    @property
    def summary(self) -> str:
        """What it computes from the tokens' tables, in words."""
        averaged = ", whose states of [CLS] are averaged" if self.pooler else ""
        heads = f"{self.num_attention_heads} heads"
        return f"{self.num_hidden_layers} layers of attention, {self.vector_size} wide, {heads}{averaged}"

    def problems(self, max_seq_length: int) -> list[str]:
        """Returns the reasons why it cannot read sequences of this length, or cannot be built."""
        problems, places = [], self.max_position_embeddings
        # Every head has the same width, as in BERT.
        if self.vector_size % self.num_attention_heads:
            problems.append(f"{self.num_attention_heads} heads do not share a width of {self.vector_size} evenly")
        if max_seq_length > places:
            what = f"has positions for {places:,} tokens, but texts have up to {max_seq_length:,}"
            problems.append(f"--embedding bert: {what}. Use --init noise, or another --embedding")
        return problems


AnyEncoder = Hybrid | Cmow | Cbow | Recurrent | Lstm | Biattentive | Aligned | Bert
