"""The signals ``attention`` and ``values``: a square matrix of numbers for each head, stored row by row.

Shapes: A heads, L tokens of a row, R rows, K numbers of a square that are kept.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from pipeline.arrays import Bools, Floats, Ints
from pipeline.sets.config import BlockCodecName
from pipeline.sets.record_parts import LayersName
from pipeline.sets.signals.signal import MAX_HEADS, LayerSignal, Numbers, Stored
from pipeline.sets.vector_codecs import Basis

MOST = 255  # largest stored number (uint8)
DISK_SHARE = 0.95  # measured: quantized numbers hardly compress


class Blocks(LayerSignal):
    """A list of A·K numbers per row and layer, head after head.

    Attributes:
        numbers: their name in the card.
        heads: A.
        codec: ``float32`` or ``u8``, which stores integers between the minimum (``_low``) and the maximum (``_high``)
            of a head and token.
    """

    numbers: ClassVar[str]

    heads: int = Field(ge=1, le=MAX_HEADS)
    codec: BlockCodecName = "u8"

    def __str__(self) -> str:
        return f"{self.name} of {self.layers_text()}, {self.heads} heads, codec {self.codec!r}"

    @property
    def how(self) -> str:
        """See `LayerSignal`."""
        return self.codec

    @abstractmethod
    def kept(self, length: int) -> Bools:
        """Returns which numbers of a square are stored [L, L], at least one per row."""

    @abstractmethod
    def whole(self, block_ALL: Floats) -> Floats:
        """Returns the squares of the stored numbers, with 0 for the others."""

    def column_types(self) -> dict[str, pa.DataType]:
        """See `LayerSignal`."""
        return {"": pa.float32()} if self.codec == "float32" else dict(zip(ENDS, U8_TYPES, strict=True))

    def sizes(self, length_R: Ints) -> dict[str, Ints]:
        """See `LayerSignal`."""
        sizes = {"": self.heads * self.num_kept(length_R), **dict.fromkeys(ENDS[1:], self.heads * length_R)}
        return {end: sizes[end] for end in self.column_types()}

    @abstractmethod
    def num_kept(self, length_R: Ints) -> Ints:
        """Returns how many numbers `kept` selects for rows of so many tokens."""

    def num_floats(self, length_R: Ints) -> Ints:
        """See `LayerSignal`."""
        return self.heads * length_R**2

    def num_bytes(self, length_R: Ints) -> float:
        """See `LayerSignal`."""
        return DISK_SHARE * float(self.stored_bytes(length_R).sum())

    def encode(self, outputs: Sequence[Floats], basis: Basis | None = None) -> Stored:
        """See `LayerSignal`. Arrays are [A, L, L] for each row."""
        kept = [self.kept(block_ALL.shape[1]) for block_ALL in outputs]
        if self.codec == "float32":
            return {"": _joined([block[:, mask] for block, mask in zip(outputs, kept, strict=True)], np.float32)}
        parts = [_quantised(block, mask) for block, mask in zip(outputs, kept, strict=True)]
        stored = {end: _joined([part[k] for part in parts], kind) for k, (end, kind) in enumerate(U8_KINDS.items())}
        return stored | {end: stored[end].view(np.uint16) for end in ENDS[1:]}

    def decode(self, stored: Stored, length_R: Ints, basis: Basis | None = None) -> list[Floats]:
        """See `LayerSignal`. Arrays are [A, L, L] for each row."""
        sizes = self.sizes(length_R)
        parts = {end: np.split(stored[end], np.cumsum(sizes[end])[:-1]) for end in sizes}
        blocks = []
        for row, length in enumerate(length_R.tolist()):
            mask_LL = self.kept(length)
            block_ALL = np.zeros((self.heads, length, length), dtype=np.float32)
            block_ALL[:, mask_LL] = parts[""][row].reshape(self.heads, -1)
            if self.codec == "u8":
                low_AL, high_AL = (_halves(parts[end][row]).reshape(self.heads, length) for end in ENDS[1:])
                block_ALL = low_AL[..., None] + block_ALL * ((high_AL - low_AL) / MOST)[..., None]
                block_ALL[:, ~mask_LL] = 0
            blocks.append(self.whole(block_ALL))
        return blocks

    def numbers_problem(self, stored: Stored) -> str | None:
        """See `LayerSignal`."""
        if self.codec == "float32":
            return None if np.isfinite(stored[""]).all() else "a number is NaN or Inf"
        low, high = (_halves(stored[end]) for end in ENDS[1:])
        is_sound = np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()
        return None if is_sound else "the range of a token's numbers is NaN or Inf, or ends below its beginning"

    def column_meanings(self) -> dict[str, str]:
        """See `LayerSignal`."""
        if self.codec == "float32":
            return {"": self.numbers}
        return {
            "": f"{self.numbers}, each q of them `low + q / 255 * (high - low)`",
            "_low": "the minimum of each head and token, bits of float16",
            "_high": "the greatest",
        }


ENDS = ("", "_low", "_high")
U8_TYPES = (pa.uint8(), pa.uint16(), pa.uint16())
U8_KINDS: dict[str, Any] = dict(zip(ENDS, (np.uint8, np.float16, np.float16), strict=True))


def _quantised(block_ALL: Floats, mask_LL: Bools) -> tuple[npt.NDArray[np.uint8], Floats, Floats]:
    """Returns integers [A, K], and minimum and maximum of each head and token, float16 [A, L]."""
    with np.errstate(over="ignore"):
        # The range is rounded to float16 before the step is computed, so that encoding and decoding use the same grid.
        low_AL = block_ALL.min(axis=2, where=mask_LL, initial=np.inf).astype(np.float16)
        high_AL = block_ALL.max(axis=2, where=mask_LL, initial=-np.inf).astype(np.float16)
    step_AL = (high_AL.astype(np.float32) - low_AL.astype(np.float32)) / MOST
    with np.errstate(invalid="ignore"):
        # A constant row has the step 0. Dividing by 1 instead gives 0, which decodes to the constant.
        number_ALL = (block_ALL - low_AL[..., None].astype(np.float32)) / np.where(step_AL > 0, step_AL, 1)[..., None]
        # Masked numbers and float16 rounding of the range can lie outside it, so the result is clipped.
        rounded_ALL = np.rint(number_ALL).clip(0, MOST).astype(np.uint8)
    return rounded_ALL[:, mask_LL], low_AL, high_AL


def _joined(parts: Sequence[Numbers], dtype: Any) -> Numbers:
    return np.concatenate([np.empty(0, dtype=dtype), *(part.ravel() for part in parts)])


def _halves(bits: Numbers) -> Floats:
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


class Attention(Blocks):
    """The scaled products of queries and keys of each head, before softmax and mask. Each row is a query."""

    name: ClassVar[LayersName] = "attention"
    title: ClassVar[str] = "attention of layers"
    meaning: ClassVar[str] = "Attention scores before softmax and mask, head after head, query after query."
    numbers: ClassVar[str] = "heads · length · length numbers"

    def kept(self, length: int) -> Bools:
        """All."""
        return np.ones((length, length), dtype=bool)

    def whole(self, block_ALL: Floats) -> Floats:
        """Returns the squares unchanged."""
        return block_ALL

    def num_kept(self, length_R: Ints) -> Ints:
        """Returns L² for each row."""
        return length_R**2


class Values(Blocks):
    """The scaled products of the attention's values with each other (MiniLM): the upper half of each symmetric square.

    With 128 tokens it is as large as the values themselves. With fewer tokens it is smaller.
    """

    name: ClassVar[LayersName] = "values"
    title: ClassVar[str] = "value relations of layers"
    meaning: ClassVar[str] = (
        "Products of the attention's values before softmax, head after head, token after token: the upper half of a "
        "symmetric square, the diagonal included."
    )
    numbers: ClassVar[str] = "heads · length · (length + 1) / 2 numbers"

    def kept(self, length: int) -> Bools:
        """Selects the diagonal and the numbers above it."""
        return np.triu(np.ones((length, length), dtype=bool))

    def whole(self, block_ALL: Floats) -> Floats:
        """Returns the symmetric squares."""
        return block_ALL + np.triu(block_ALL, 1).swapaxes(1, 2)

    def num_kept(self, length_R: Ints) -> Ints:
        """Returns L · (L + 1) / 2 for each row."""
        return length_R * (length_R + 1) // 2
