"""What ``--embedding`` chooses from: the encoders, and what the rest of the student asks of each kind.

A new one is a file with its module, an `Encoder`, and a line in `ENCODERS`; its name and its flags stand in
`student.config`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from student.config import EmbeddingFlags, EmbeddingKind, HeadKind, PairingKind, PoolingKind
from student.model.bert import BertEncoder
from student.model.embeddings import MatrixEncoder
from student.model.encoder import Encoder, EncoderShape

SIZES = ("matrix_size", "vector_size")  # the flags of encoders, of which each has some


@dataclass(frozen=True)
class EncoderKind:
    """What the rest of the student asks of a kind of encoder.

    Attributes:
        words: its name in cards.
        sizes: the flags that it reads, of `SIZES`, with the values of the paper.
        has_directions: whether it reads ``bidirectional``.
        pooling: of its vectors, if none is asked for.
        head: likewise.
        pairing: likewise.
        hidden_dropout: likewise.
        learning_rate: likewise.
        is_bert: whether it is a BERT: it reads the tokenizer's special tokens, and has no other head and pairing.
        make: makes the module of a shape.
    """

    words: str
    sizes: dict[str, int]
    has_directions: bool
    pooling: PoolingKind = "sum"
    head: HeadKind = "mlp"
    pairing: PairingKind = "compare"
    hidden_dropout: float = 0.2
    learning_rate: float = 5e-4
    is_bert: bool = False
    make: Callable[[EncoderShape], Encoder] = MatrixEncoder

    def parameters(self, flags: EmbeddingFlags, reads_tokens: bool) -> dict[str, Any]:
        """The fields of `EncoderConfig` that the flags ask for; a size that this kind has not is 0.

        Args:
            flags: the flags.
            reads_tokens: whether the representation of every token is read, in which there are no maxima.
        """
        sizes = {name: getattr(flags, name) or self.sizes.get(name, 0) for name in SIZES}
        ways = {"bidirectional": flags.bidirectional and self.has_directions}
        return sizes | ways | {"pooling": "sum" if reads_tokens else flags.pooling or self.pooling}


ENCODERS: dict[EmbeddingKind, EncoderKind] = {
    "hybrid": EncoderKind("Hybrid", {"matrix_size": 20, "vector_size": 400}, has_directions=True, pooling="sum+max"),
    "cmow": EncoderKind("CMOW", {"matrix_size": 28}, has_directions=True),
    "cbow": EncoderKind("CBOW", {"vector_size": 784}, has_directions=False, pooling="sum+max"),
    "bert": EncoderKind(
        "BERT",
        {"vector_size": 384},
        has_directions=False,
        head="dense",
        pairing="joint",
        hidden_dropout=0.1,
        learning_rate=5e-5,
        is_bert=True,
        make=BertEncoder,
    ),
}
