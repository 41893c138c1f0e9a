"""Shared types of codecs: their input, their output, and numbers in Arrow columns.

Shapes: P positions, V vocabulary, H hidden size, E kept entries of all positions.
"""

# Annotations stay strings, so that reading records needs no torch.
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError

if TYPE_CHECKING:
    import torch

Columns = Mapping[str, pa.Array]  # one entry per position
MOST_IN_HALF = 65_504.0  # the greatest number of float16


class BeyondHalfError(DataError):
    """A number that float16 cannot hold, at a position that the error stores."""

    def __init__(self, number: float, position: int) -> None:
        super().__init__(
            f"{number:,.0f} is more than float16 can hold, {MOST_IN_HALF:,.0f}. Use --codec sampled, which "
            f"stores no such numbers"
        )
        self.position = position


@dataclass(frozen=True)
class Predictions:
    """A teacher's predictions at some positions, before they are stored.

    Attributes:
        logits_PV: float32.
        hidden_PH: float32, the input of its decoder.
        random_P: float64 in (0, 1), a random number per position for sampling.
    """

    logits_PV: torch.Tensor
    hidden_PH: torch.Tensor
    random_P: torch.Tensor

    @cached_property
    def log_z_P(self) -> torch.Tensor:
        """Log of the sum of exp(logit), float32. Cached, because a pass over all logits is expensive."""
        return self.logits_PV.logsumexp(dim=1)


@dataclass(frozen=True)
class Dense:
    """Distributions in full: probability_PV, float32."""

    probability_PV: torch.Tensor

    def part(self, start: int, stop: int) -> Dense:
        """The distributions of the positions ``start`` to ``stop`` (exclusive)."""
        return Dense(self.probability_PV[start:stop])

    def to(self, device: torch.device) -> Dense:
        """The distributions on a device."""
        return Dense(self.probability_PV.to(device))


@dataclass(frozen=True)
class Sparse:
    """Distributions with only some of their entries.

    Attributes:
        position_E: int64, the position of each entry, ascending.
        token_E: int64, its id.
        probability_E: float32.
        rest_P: float32, the total probability of all other tokens.
    """

    position_E: torch.Tensor
    token_E: torch.Tensor
    probability_E: torch.Tensor
    rest_P: torch.Tensor

    def part(self, start: int, stop: int) -> Sparse:
        """The distributions of the positions ``start`` to ``stop`` (exclusive)."""
        import torch

        low, high = torch.searchsorted(self.position_E, self.position_E.new_tensor([start, stop])).tolist()
        position_E, token_E, probability_E = (
            part[low:high] for part in (self.position_E, self.token_E, self.probability_E)
        )
        return Sparse(position_E - start, token_E, probability_E, self.rest_P[start:stop])

    def to(self, device: torch.device) -> Sparse:
        """The distributions on a device."""
        parts = (self.position_E, self.token_E, self.probability_E, self.rest_P)
        return Sparse(*(part.to(device) for part in parts))


Distribution = Dense | Sparse


def lists(values: np.ndarray[Any, Any], counts_P: np.ndarray[Any, Any], kind: pa.DataType) -> pa.ListArray:
    """A list per position from all values end to end, with ``counts_P`` of them each."""
    offsets = np.concatenate([[0], np.cumsum(counts_P)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values).cast(kind))


def rectangle(column: pa.Array, dtype: Any) -> np.ndarray[Any, Any]:
    """A column of lists of the same length as an array [P, W]."""
    flat: np.ndarray[Any, Any] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.astype(dtype, copy=False).reshape(len(column), -1)


def half_bits(values_PK: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns float16 numbers as uint16 bits, because DuckDB cannot read float16 with BYTE_STREAM_SPLIT encoding.

    Raises:
        BeyondHalfError: if a number is too large for it.
    """
    low, high = values_PK.aminmax()
    if not -MOST_IN_HALF <= low <= high <= MOST_IN_HALF:
        # The negated comparison also finds NaN, for which every comparison is false.
        position, place = (~(values_PK.abs() <= MOST_IN_HALF)).nonzero()[0].tolist()
        raise BeyondHalfError(float(values_PK[position, place]), position)
    return values_PK.half().cpu().contiguous().numpy().view(np.uint16)


def from_half_bits(bits: np.ndarray[Any, Any]) -> torch.Tensor:
    """Returns the output of `half_bits` as float32."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(bits).view(np.float16).astype(np.float32))


def wrong_width(column: pa.Array, width: int) -> str | None:
    """Returns a problem if a position's list has another length."""
    wrong = pc.any(pc.not_equal(pc.list_value_length(column), width)).as_py()
    return f"a position has not {width} numbers" if wrong else None


def not_finite(columns: Columns, *names: str) -> str | None:
    """Returns a problem if a column contains NaN or Inf, in float16 bits or in float32."""
    for name in names:
        column = columns[name]
        numbers = column.flatten() if pa.types.is_list(column.type) else column
        values = numbers.to_numpy(zero_copy_only=False)
        if not np.isfinite(values.view(np.float16) if values.dtype == np.uint16 else values).all():
            return f"{name} is NaN or Inf somewhere"
    return None


def unknown_id(vocabulary_size: int, candidates: pa.Array) -> str | None:
    """Returns a problem if an id is not in the vocabulary."""
    top = pc.max(candidates.flatten()).as_py()
    return f"candidate {top} is beyond the vocabulary" if top >= vocabulary_size else None
