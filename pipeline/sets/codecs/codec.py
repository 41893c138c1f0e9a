"""The interface of codecs: settings, columns, encoding and decoding.

Shapes: P positions, V vocabulary, H hidden size.
"""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pydantic import Field

from pipeline.sets.codecs.common import Columns, Distribution, Predictions
from pipeline.sets.codecs.decoder import Decoder
from pipeline.sets.record_parts import MAX_VOCABULARY, Part

if TYPE_CHECKING:
    import torch


class Codec(Part):
    """A way to store distributions over the vocabulary, with its settings, as part of a set's record.

    Attributes:
        card_line: its columns, as a row of the card's table.
        is_lossless: whether other codecs can be made from its columns.
        needs_decoder: whether it stores the input of the teacher's last layer, which is then needed for reading.
        is_unbiased: whether the expectation of the stored distribution is the full distribution.
        name: of the codec.
        vocabulary_size: V.
    """

    card_line: ClassVar[str]
    is_lossless: ClassVar[bool] = False
    needs_decoder: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = True

    name: str
    # Bounded, because the record may be hostile and readers allocate arrays of this size.
    vocabulary_size: int = Field(ge=2, le=MAX_VOCABULARY)

    def __str__(self) -> str:
        return self.name

    @classmethod
    @abstractmethod
    def worth_trying(cls, source: "Codec") -> Sequence["Codec"]:
        """Returns the codecs of this kind that `distill budget` compares on the data of a lossless codec."""

    @abstractmethod
    def fields(self) -> dict[str, pa.DataType]:
        """The columns' names, with the type of one position's entry."""

    def columns(self) -> list[pa.Field]:
        """The columns of a file, with a list entry per masked position of a row."""
        return [pa.field(name, pa.list_(kind), nullable=False) for name, kind in self.fields().items()]

    @abstractmethod
    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        """Returns the columns, one entry per position, and mass_P, the teacher's probability of the kept tokens.

        Raises:
            BeyondHalfError: if a number that is stored as float16 is too large for it.
        """

    @abstractmethod
    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Distribution:
        """The distributions at a temperature that the codec honours."""

    @abstractmethod
    def problem(self, columns: Columns) -> str | None:
        """Returns the problem with stored columns, or None."""

    @property
    def stored_temperature(self) -> float:
        """Returns a temperature at which the distribution can be decoded."""
        return 1.0

    def honours(self, temperature: float) -> bool:
        """Whether the distribution at this temperature can be decoded."""
        # A codec that drops tokens cannot rescale: the normalizer at another temperature needs the dropped logits.
        return self.is_lossless or temperature == self.stored_temperature

    @abstractmethod
    def num_bytes(self) -> float:
        """Returns the approximate bytes of a position on disk, measured on a small BERT's predictions on Wikipedia."""

    @abstractmethod
    def candidates_sql(self) -> tuple[str, str]:
        """SQL for the kept ids of a position and their probabilities, as two lists."""

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        """Returns the teacher's predictions from the columns of a lossless codec. ``random_P`` is used for sampling."""
        raise AssertionError(f"codec {self} is not lossless. Callers check `is_lossless` first")

    @property
    def decoder_bytes(self) -> int:
        """Bytes of the numbers of its decoder."""
        return 0

    def read_decoder(self, path: Path) -> Decoder | None:
        """Reads the teacher's last layer, if the codec needs it.

        Raises:
            IntegrityError: if the file is missing or damaged, or has another size.
        """
        return None
