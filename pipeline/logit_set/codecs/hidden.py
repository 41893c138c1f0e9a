"""The decoder's input in float16, and once per set the decoder: exact at any temperature, without the teacher.

About 1.4 bytes a number, 530 a position for 384 of them; any other codec can be made from it later (`distill recode`).

Shapes: P positions, H hidden size.
"""

import numpy as np
import pyarrow as pa
import torch

from pipeline.logit_set.codecs.common import (
    Columns,
    Decoder,
    Dense,
    Predictions,
    from_half_bits,
    half_bits,
    lists,
    not_finite,
    rectangle,
    wrong_width,
)
from pipeline.logit_set.parts import Codec


def fields(codec: Codec) -> dict[str, pa.DataType]:
    """``hidden``: float16 bits."""
    return {"hidden": pa.list_(pa.uint16())}


def encode(codec: Codec, said: Predictions) -> tuple[dict[str, pa.Array], torch.Tensor]:
    """See `CodecModule`."""
    bits_PH = half_bits(said.hidden_PH)
    counts_P = np.full(len(bits_PH), bits_PH.shape[1])
    return {"hidden": lists(bits_PH.ravel(), counts_P, pa.uint16())}, torch.ones(len(bits_PH))


def decode(codec: Codec, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
    """See `CodecModule`."""
    assert decoder is not None, "the set keeps its decoder"
    return Dense((decoder(stored(columns)) / temperature).softmax(dim=1))


def stored(columns: Columns) -> torch.Tensor:
    """Returns hidden_PH, float32."""
    return from_half_bits(rectangle(columns["hidden"], np.uint16))


def problem(codec: Codec, columns: Columns) -> str | None:
    """See `CodecModule`."""
    assert codec.hidden_size is not None
    return wrong_width(columns["hidden"], codec.hidden_size) or not_finite(columns, "hidden")


def honours(codec: Codec, temperature: float) -> bool:
    """Any temperature."""
    return True


def num_bytes(codec: Codec) -> float:
    """See `CodecModule`."""
    assert codec.hidden_size is not None
    return 1.4 * codec.hidden_size


def candidates_sql(codec: Codec) -> tuple[str, str]:
    """None: SQL has no decoder. Recode the set to see words."""
    return "[null]", "[null]"
