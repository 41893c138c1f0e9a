"""The K most likely tokens with their log-probabilities, and log Z, so that the mass of the tail is known.

The tail is one more class: known in sum, not in detail, and only at temperature 1. Leaving it out instead would teach a
student too much confidence.

Shapes: P positions, V vocabulary, K candidates.
"""

import numpy as np
import pyarrow as pa
import torch

from pipeline.logit_set.codecs.common import (
    Columns,
    Decoder,
    Kept,
    Predictions,
    from_half_bits,
    half_bits,
    lists,
    not_finite,
    rectangle,
    unknown_id,
    wrong_width,
)
from pipeline.logit_set.parts import Codec
from pipeline.logit_set.shard_file import id_type


def fields(codec: Codec) -> dict[str, pa.DataType]:
    """``candidates``: ids, the likeliest first; ``log_probs``: float16 bits; ``log_z``: logit = log_prob + log_z."""
    ids = pa.list_(id_type(codec.vocabulary_size))
    return {"candidates": ids, "log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}


def encode(codec: Codec, said: Predictions) -> tuple[dict[str, pa.Array], torch.Tensor]:
    """See `CodecModule`."""
    assert codec.top_k is not None
    log_z_P = said.log_z_P
    best_PK, token_PK = said.logits_PV.topk(codec.top_k, dim=1)
    log_probs_PK = best_PK - log_z_P[:, None]
    counts_P = np.full(len(log_z_P), codec.top_k)
    columns = {
        "candidates": lists(token_PK.cpu().numpy().ravel(), counts_P, id_type(codec.vocabulary_size)),
        "log_probs": lists(half_bits(log_probs_PK).ravel(), counts_P, pa.uint16()),
        "log_z": pa.array(log_z_P.cpu().numpy()),
    }
    return columns, log_probs_PK.exp().sum(dim=1)


def decode(codec: Codec, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Kept:
    """See `CodecModule`."""
    probability_PK = from_half_bits(rectangle(columns["log_probs"], np.uint16)).exp()
    token_PK = torch.from_numpy(rectangle(columns["candidates"], np.int64))
    position_PK = torch.arange(len(token_PK))[:, None].expand_as(token_PK)
    rest_P = (1 - probability_PK.sum(dim=1)).clamp(min=0)
    return Kept(position_PK.flatten(), token_PK.flatten(), probability_PK.flatten(), rest_P)


def problem(codec: Codec, columns: Columns) -> str | None:
    """See `CodecModule`."""
    assert codec.top_k is not None
    return (
        wrong_width(columns["candidates"], codec.top_k)
        or wrong_width(columns["log_probs"], codec.top_k)
        or not_finite(columns, "log_probs", "log_z")
        or unknown_id(codec, columns["candidates"])
    )


def honours(codec: Codec, temperature: float) -> bool:
    """Only 1: at any other temperature the mass of the tail depends on tokens that are not there."""
    return temperature == 1


def num_bytes(codec: Codec) -> float:
    """See `CodecModule`."""
    assert codec.top_k is not None
    return 2.85 * codec.top_k + 8


def candidates_sql(codec: Codec) -> tuple[str, str]:
    """See `CodecModule`."""
    return "candidates", "list_transform(log_probs, lambda x: exp(half(x)))"
