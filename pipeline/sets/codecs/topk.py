"""Stores the K most likely tokens with their log-probabilities and log Z, so that the mass of the tail is known.

The tail is one more class, with a known sum and unknown details, and only at temperature 1. Without it a student would
learn to be overconfident.

Shapes: P positions, V vocabulary, K candidates.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from pipeline.arrays import id_type
from pipeline.sets.codecs.codec import Codec
from pipeline.sets.codecs.common import (
    Columns,
    Predictions,
    Sparse,
    from_half_bits,
    half_bits,
    lists,
    not_finite,
    rectangle,
    unknown_id,
    wrong_width,
)
from pipeline.sets.codecs.decoder import Decoder
from pipeline.sets.record_parts import MAX_VOCABULARY

if TYPE_CHECKING:
    import torch


class TopKCodec(Codec):
    """Columns ``candidates``, the most likely ids first, and ``log_probs`` and ``log_z`` as in `DenseCodec`.

    Attributes:
        top_k: K. At temperatures other than 1, the mass of the tail depends on tokens that are not stored.
    """

    card_line: ClassVar[str] = (
        "| `candidates`, `log_probs`, `log_z` | the most likely ids, bits of float16 of their "
        "log-probabilities. The logit is log_prob + log_z |"
    )
    is_unbiased: ClassVar[bool] = False

    name: Literal["topk"] = "topk"
    top_k: int = Field(ge=1, le=MAX_VOCABULARY)

    def __str__(self) -> str:
        return f"{self.name}-{self.top_k}"

    @classmethod
    def worth_trying(cls, source: Codec) -> Sequence[Codec]:
        """Returns codecs with a few values of K, up to the size of the vocabulary."""
        size = source.vocabulary_size
        return [cls(vocabulary_size=size, top_k=k) for k in (12, 50, 100) if k <= size]

    def fields(self) -> dict[str, pa.DataType]:
        """See `Codec`."""
        ids = pa.list_(id_type(self.vocabulary_size))
        return {"candidates": ids, "log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        """See `Codec`."""
        log_z_P = predictions.log_z_P
        best_PK, token_PK = predictions.logits_PV.topk(self.top_k, dim=1)
        # log Z over the whole vocabulary, not over the K kept tokens: their sum then shows how much mass the tail has.
        log_probs_PK = best_PK - log_z_P[:, None]
        counts_P = np.full(len(log_z_P), self.top_k)
        columns = {
            "candidates": lists(token_PK.cpu().numpy().ravel(), counts_P, id_type(self.vocabulary_size)),
            "log_probs": lists(half_bits(log_probs_PK).ravel(), counts_P, pa.uint16()),
            "log_z": pa.array(log_z_P.cpu().numpy()),
        }
        return columns, log_probs_PK.exp().sum(dim=1)

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Sparse:
        """See `Codec`."""
        import torch

        probability_PK = from_half_bits(rectangle(columns["log_probs"], np.uint16)).exp()
        token_PK = torch.from_numpy(rectangle(columns["candidates"], np.int64))
        position_PK = torch.arange(len(token_PK))[:, None].expand_as(token_PK)
        # Rounding to float16 can push the sum of the kept probabilities slightly above 1.
        rest_P = (1 - probability_PK.sum(dim=1)).clamp(min=0)
        return Sparse(position_PK.flatten(), token_PK.flatten(), probability_PK.flatten(), rest_P)

    def problem(self, columns: Columns) -> str | None:
        """See `Codec`."""
        return (
            wrong_width(columns["candidates"], self.top_k)
            or wrong_width(columns["log_probs"], self.top_k)
            or not_finite(columns, "log_probs", "log_z")
            or unknown_id(self.vocabulary_size, columns["candidates"])
        )

    def num_bytes(self) -> float:
        """See `Codec`."""
        return 2.85 * self.top_k + 8

    def candidates_sql(self) -> tuple[str, str]:
        """See `Codec`."""
        return "candidates", "list_transform(log_probs, lambda x: exp(half(x)))"
