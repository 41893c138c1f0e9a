"""The codecs from which all others can be made: ``dense`` and ``hidden``.

``dense`` stores every log-probability in float16, 61 kB per position for BERT: the reference for the other codecs.
``hidden`` stores the decoder's input in float16, and the decoder once per set: exact at any temperature without the
teacher. It takes about 1.4 bytes per number, which is 530 per position with 384 numbers.

Shapes: P positions, V vocabulary, H hidden size.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from pipeline.sets.codecs.codec import (
    Codec,
    Columns,
    Decoder,
    Dense,
    Predictions,
    from_half_bits,
    half_bits,
    lists,
    not_finite,
    wrong_width,
)

if TYPE_CHECKING:
    import torch


class DenseCodec(Codec):
    """Columns ``log_probs`` and ``log_z``, in float16 bits: logit = log_prob + log_z."""

    card_line: ClassVar[str] = (
        "| `log_probs`, `log_z` | bits of float16: every log-probability. The logit is log_prob + log_z |"
    )
    is_lossless: ClassVar[bool] = True

    name: Literal["dense"] = "dense"

    def fields(self) -> dict[str, pa.DataType]:
        return {"log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
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
        return Dense((from_half_bits(columns["log_probs"]) / temperature).softmax(dim=1))

    def problem(self, columns: Columns) -> str | None:
        return wrong_width(columns["log_probs"], self.vocabulary_size) or not_finite(columns, "log_probs", "log_z")

    def num_bytes(self) -> float:
        # Measured: 2 bytes a number compress to about 1.3 with zstd and split bytes.
        return 1.3 * self.vocabulary_size

    def candidates_sql(self) -> tuple[str, str]:
        return "range(len(log_probs))", "list_transform(log_probs, lambda x: exp(half(x)))"

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        """Returns the logits in the precision of float16, and no hidden states."""
        import torch

        log_z_P = torch.from_numpy(columns["log_z"].to_numpy(zero_copy_only=False).copy())
        logits_PV = from_half_bits(columns["log_probs"]) + log_z_P[:, None]
        return Predictions(logits_PV, logits_PV[:, :0], random_P)


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

    def fields(self) -> dict[str, pa.DataType]:
        return {"hidden": pa.list_(pa.uint16())}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        bits_PH = half_bits(predictions.hidden_PH)
        counts_P = np.full(len(bits_PH), bits_PH.shape[1])
        # Nothing is dropped, so the whole probability mass is kept.
        return {"hidden": lists(bits_PH.ravel(), counts_P, pa.uint16())}, predictions.logits_PV.new_ones(len(bits_PH))

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
        assert decoder is not None, "the set has its decoder"
        return Dense((decoder(from_half_bits(columns["hidden"])) / temperature).softmax(dim=1))

    def problem(self, columns: Columns) -> str | None:
        return wrong_width(columns["hidden"], self.hidden_size) or not_finite(columns, "hidden")

    def num_bytes(self) -> float:
        return 1.4 * self.hidden_size

    def candidates_sql(self) -> tuple[str, str]:
        """Returns SQL nulls, because SQL cannot apply the decoder. Recode the set to see words."""
        return "[null]", "[null]"

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        assert decoder is not None, "the set has its decoder"
        hidden_PH = from_half_bits(columns["hidden"])
        return Predictions(decoder(hidden_PH), hidden_PH, random_P)
