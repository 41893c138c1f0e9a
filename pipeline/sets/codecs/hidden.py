"""Stores the decoder's input in float16, and the decoder once per set: exact at any temperature without the teacher.

It takes about 1.4 bytes per number, which is 530 per position with 384 numbers. Any other codec can be made from it
later (`distill recode`).

Shapes: P positions, H hidden size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from pipeline.sets.codecs.codec import Codec
from pipeline.sets.codecs.common import (
    Columns,
    Dense,
    Predictions,
    from_half_bits,
    half_bits,
    lists,
    not_finite,
    rectangle,
    wrong_width,
)
from pipeline.sets.codecs.decoder import Decoder, read_decoder

if TYPE_CHECKING:
    import torch

MAX_HIDDEN_SIZE = 2**16


class HiddenCodec(Codec):
    """Column ``hidden``: float16 bits.

    Attributes:
        hidden_size: H.
    """

    card_line: ClassVar[str] = (
        "| `hidden` | bits of float16: the input of the teacher's last layer, which is `decoder.safetensors` |"
    )
    is_lossless: ClassVar[bool] = True
    needs_decoder: ClassVar[bool] = True

    name: Literal["hidden"] = "hidden"
    hidden_size: int = Field(ge=1, le=MAX_HIDDEN_SIZE)

    @classmethod
    def worth_trying(cls, source: Codec) -> Sequence[Codec]:
        """Returns the source itself if it has a decoder."""
        return [source] if isinstance(source, cls) else []

    def fields(self) -> dict[str, pa.DataType]:
        """See `Codec`."""
        return {"hidden": pa.list_(pa.uint16())}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        """See `Codec`."""
        bits_PH = half_bits(predictions.hidden_PH)
        counts_P = np.full(len(bits_PH), bits_PH.shape[1])
        # Nothing is dropped, so the whole probability mass is kept.
        mass_P = predictions.logits_PV.new_ones(len(bits_PH))
        return {"hidden": lists(bits_PH.ravel(), counts_P, pa.uint16())}, mass_P

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
        """See `Codec`."""
        assert decoder is not None, "the set has its decoder"
        return Dense((decoder(_hidden(columns)) / temperature).softmax(dim=1))

    def problem(self, columns: Columns) -> str | None:
        """See `Codec`."""
        return wrong_width(columns["hidden"], self.hidden_size) or not_finite(columns, "hidden")

    def num_bytes(self) -> float:
        """See `Codec`."""
        return 1.4 * self.hidden_size

    def candidates_sql(self) -> tuple[str, str]:
        """Returns SQL nulls, because SQL cannot apply the decoder. Recode the set to see words."""
        return "[null]", "[null]"

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        """See `Codec`."""
        assert decoder is not None, "the set has its decoder"
        hidden_PH = _hidden(columns)
        return Predictions(decoder(hidden_PH), hidden_PH, random_P)

    @property
    def decoder_bytes(self) -> int:
        """See `Codec`."""
        # Weights and biases in float32.
        return 4 * self.vocabulary_size * (self.hidden_size + 1)

    def read_decoder(self, path: Path) -> Decoder:
        """See `Codec`."""
        return read_decoder(path, self.vocabulary_size, self.hidden_size)


def _hidden(columns: Columns) -> "torch.Tensor":
    """Returns hidden_PH, float32."""
    return from_half_bits(rectangle(columns["hidden"], np.uint16))
