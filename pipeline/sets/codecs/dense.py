"""Stores every log-probability in float16: the reference for the other codecs. 61 kB per position for BERT.

Shapes: P positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa

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
from pipeline.sets.codecs.decoder import Decoder

if TYPE_CHECKING:
    import torch


class DenseCodec(Codec):
    """Columns ``log_probs`` and ``log_z``, in float16 bits: logit = log_prob + log_z."""

    card_line: ClassVar[str] = (
        "| `log_probs`, `log_z` | bits of float16: every log-probability. The logit is log_prob + log_z |"
    )
    is_lossless: ClassVar[bool] = True

    name: Literal["dense"] = "dense"

    @classmethod
    def worth_trying(cls, source: Codec) -> Sequence[Codec]:
        """The one codec of this kind."""
        return [cls(vocabulary_size=source.vocabulary_size)]

    def fields(self) -> dict[str, pa.DataType]:
        """See `Codec`."""
        return {"log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        """See `Codec`."""
        log_z_P = predictions.log_z_P
        # Log-probabilities near 0 belong to the likely tokens, and there float16 is most precise. Raw logits would not
        # use that.
        bits_PV = half_bits(predictions.logits_PV - log_z_P[:, None])
        columns = {
            "log_probs": lists(bits_PV.ravel(), np.full(len(bits_PV), bits_PV.shape[1]), pa.uint16()),
            "log_z": pa.array(log_z_P.cpu().numpy()),
        }
        return columns, log_z_P.new_ones(len(log_z_P))

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
        """See `Codec`."""
        return Dense((_log_probs(columns) / temperature).softmax(dim=1))

    def problem(self, columns: Columns) -> str | None:
        """See `Codec`."""
        return wrong_width(columns["log_probs"], self.vocabulary_size) or not_finite(columns, "log_probs", "log_z")

    def num_bytes(self) -> float:
        """See `Codec`."""
        # Measured: 2 bytes a number compress to about 1.3 with zstd and split bytes.
        return 1.3 * self.vocabulary_size

    def candidates_sql(self) -> tuple[str, str]:
        """See `Codec`."""
        return "range(len(log_probs))", "list_transform(log_probs, lambda x: exp(half(x)))"

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        """Returns the logits in the precision of float16, and no hidden states."""
        import torch

        log_z_P = torch.from_numpy(columns["log_z"].to_numpy(zero_copy_only=False).copy())
        logits_PV = _log_probs(columns) + log_z_P[:, None]
        return Predictions(logits_PV, logits_PV[:, :0], random_P)


def _log_probs(columns: Columns) -> "torch.Tensor":
    """Returns log_probs_PV, float32."""
    return from_half_bits(rectangle(columns["log_probs"], np.uint16))
