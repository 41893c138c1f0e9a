"""Every log-probability, in float16: the control against which the others are measured. 61 kB a position for BERT.

Shapes: P positions, V vocabulary.
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
    """``log_probs``: float16 bits; ``log_z``: logit = log_prob + log_z."""
    return {"log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}


def encode(codec: Codec, said: Predictions) -> tuple[dict[str, pa.Array], torch.Tensor]:
    """See `CodecModule`."""
    log_z_P = said.log_z_P
    bits_PV = half_bits(said.logits_PV - log_z_P[:, None])
    columns = {
        "log_probs": lists(bits_PV.ravel(), np.full(len(bits_PV), bits_PV.shape[1]), pa.uint16()),
        "log_z": pa.array(log_z_P.cpu().numpy()),
    }
    return columns, torch.ones_like(log_z_P)


def decode(codec: Codec, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
    """See `CodecModule`."""
    return Dense((stored(columns) / temperature).softmax(dim=1))


def stored(columns: Columns) -> torch.Tensor:
    """Returns log_probs_PV, float32: the logits up to a constant per position."""
    return from_half_bits(rectangle(columns["log_probs"], np.uint16))


def problem(codec: Codec, columns: Columns) -> str | None:
    """See `CodecModule`."""
    return wrong_width(columns["log_probs"], codec.vocabulary_size) or not_finite(columns, "log_probs", "log_z")


def honours(codec: Codec, temperature: float) -> bool:
    """Any temperature."""
    return True


def num_bytes(codec: Codec) -> float:
    """See `CodecModule`."""
    return 1.3 * codec.vocabulary_size


def candidates_sql(codec: Codec) -> tuple[str, str]:
    """See `CodecModule`."""
    return "range(len(log_probs))", "list_transform(log_probs, lambda x: exp(half(x)))"
