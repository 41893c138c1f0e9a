"""The encoders that ``--embedding`` chooses from, and the properties of each kind.

A new encoder is a file with an `Encoder`, a line in `ENCODERS`, and settings in `student.model.flags`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from student.encoders.aligned import AlignedEncoder
from student.encoders.bert import BertEncoder
from student.encoders.biattentive import BiattentiveEncoder
from student.encoders.encoder import Encoder, EncoderShape
from student.encoders.lstm import LstmEncoder
from student.encoders.matrices import MatrixEncoder
from student.encoders.recurrent import RecurrentEncoder, state_size_of
from student.model.flags import EmbeddingKind, EncoderSettings, PoolingKind
from student.settings import HeadKind, PairingKind

# 16,384 bigrams raised the score on CoLA. See docs/experiments/bigrams.md. The number was fixed before that comparison.
NUM_BIGRAMS = 2**14
# Each encoder reads some of these flags, and a flag that it does not read is refused.
SIZES = ("matrix_size", "vector_size", "lstm_size", "channels")


@dataclass(frozen=True)
class EncoderKind:
    """The properties of a kind of encoder.

    Attributes:
        words: its name in cards.
        sizes: those of `SIZES` that it uses, with the paper's values.
        pooling: the default pooling of its vectors.
        head: the default head.
        num_bigrams: the default number, for a head that supports them and few rows. See `student.settings.num_bigrams`.
        pairing: the default pairing. ``attention`` if it reads both sentences at once.
        hidden_dropout: the default rate.
        is_bert: whether it is a BERT, which reads the tokenizer's special tokens and has a fixed head and pairing.
        make: makes the module of a shape.
    """

    words: str
    sizes: dict[str, int]
    pooling: PoolingKind = "sum"
    num_bigrams: int = 0
    head: HeadKind = "mlp"
    pairing: PairingKind = "compare"
    hidden_dropout: float = 0.2
    is_bert: bool = False
    make: Callable[[EncoderShape], Encoder] = MatrixEncoder

    @property
    def has_sums(self) -> bool:
        """Whether it sums or multiplies. Pooling, windows, squares, smaller tables and pretraining require it."""
        return self.make is MatrixEncoder

    @property
    def can_be_rounded(self) -> bool:
        """Whether its weights may be rounded on disk. For LSTMs and BERTs the loss was not measured."""
        return self.has_sums or self.make in (AlignedEncoder, RecurrentEncoder)

    @property
    def reads_pairs(self) -> bool:
        """Whether it reads both sentences at once."""
        return self.pairing == "attention"

    @property
    def has_token_features(self) -> bool:
        """Whether it has features per token, which some heads and labelled words read."""
        return not self.reads_pairs and self.make is not RecurrentEncoder

    @property
    def sums_vectors(self) -> bool:
        """Whether sums of vectors are among its features, for which pretrained vectors were made."""
        return self.has_sums or self.make is RecurrentEncoder

    def layer_numbers(self, vector_size: int) -> int:
        """Returns the least number of weights in its layers, for vectors of this size, besides LSTMs and BERTs."""
        if self.make is RecurrentEncoder:
            return 4 * state_size_of(vector_size) * vector_size
        return 2 * vector_size**2 if self.make is AlignedEncoder else 0

    def parameters(self, encoder: EncoderSettings, reads_tokens: bool) -> dict[str, Any]:
        """Returns the fields of `EncoderConfig` for the settings. The size of an absent matrix or vector is 0.

        Args:
            encoder: the settings of this kind.
            reads_tokens: whether a representation per token is needed, which has no maxima.
        """
        sizes = {name: getattr(encoder, name, None) or self.sizes.get(name, 0) for name in SIZES}
        hidden_size, channels = sizes.pop("lstm_size"), sizes.pop("channels") or 1
        return sizes | {
            "bidirectional": getattr(encoder, "bidirectional", False),
            "pooling": "sum" if reads_tokens else getattr(encoder, "pooling", None) or self.pooling,
            "lstm": {"hidden_size": hidden_size, "channels": channels} if hidden_size else None,
        }


ENCODERS: dict[EmbeddingKind, EncoderKind] = {
    # Sizes are the paper's: 20 x 20 matrices and 400 numbers, or 28 x 28 = 784 for one part alone.
    "hybrid": EncoderKind("Hybrid", {"matrix_size": 20, "vector_size": 400}, "sum+max", NUM_BIGRAMS),
    "cmow": EncoderKind("CMOW", {"matrix_size": 28}, num_bigrams=NUM_BIGRAMS),
    "cbow": EncoderKind("CBOW", {"vector_size": 784}, pooling="sum+max", num_bigrams=NUM_BIGRAMS),
    "recurrent": EncoderKind("Element-wise recurrence", {"vector_size": 400}, make=RecurrentEncoder),
    # Sizes of the LSTM are those of Tang et al. (2019): vectors of 300 numbers, 150 per direction.
    "lstm": EncoderKind("BiLSTM", {"vector_size": 300, "lstm_size": 150, "channels": 1}, make=LstmEncoder),
    # The paper trains this student with 256 numbers per direction (Liu et al. 2020).
    "biattentive": EncoderKind(
        "Biattentive LSTM",
        {"vector_size": 300, "lstm_size": 256},
        pairing="attention",
        make=BiattentiveEncoder,
    ),
    # 100 numbers scored a point less on MNLI. See docs/experiments/aligned-pairs.md.
    "aligned": EncoderKind("Aligned pairs", {"vector_size": 200}, pairing="attention", make=AlignedEncoder),
    "bert": EncoderKind(
        "BERT",
        {"vector_size": 384},
        head="dense",
        pairing="joint",
        hidden_dropout=0.1,
        is_bert=True,
        make=BertEncoder,
    ),
}
