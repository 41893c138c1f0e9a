"""Array types, ragged lists of ids as two flat arrays, and random numbers that are functions of a key.

It imports only numpy, so that it is quick to import, and serving a file needs no Arrow. Shapes: N rows, B batch,
L tokens.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]

# The published constants of SplitMix64: the odd integer nearest to 2^64 / golden ratio, and the mixing factors of
# Stafford's variant 13. Changing one changes every sampled logit and every random split.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Ragged:
    """Lists of ids, end to end: row n is ``flat[offsets[n]:offsets[n + 1]]``."""

    flat: Ints
    offsets: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """Returns lists of ids as one flat array of int64."""
        lengths = [len(row) for row in rows]
        # `fromiter` with a known count fills the array directly, without a list of all ids in between.
        flat = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64, count=sum(lengths))
        return cls(flat, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def repeated(cls, row: Sequence[int], count: int) -> "Ragged":
        """A row of ids ``count`` times over."""
        return cls(np.tile(np.asarray(row, dtype=np.int64), count), np.arange(count + 1) * len(row))

    @property
    def lengths(self) -> Ints:
        """Tokens per row [N]."""
        return np.diff(self.offsets)

    def padded(self, rows: Sequence[int], pad_id: int) -> Ints:
        """Returns rows as ids_BL, padded at the end, at least one token wide."""
        rows_B = np.asarray(rows, dtype=np.int64)
        starts_B = self.offsets[rows_B]
        lengths_B = self.offsets[rows_B + 1] - starts_B
        position_L = np.arange(max(1, lengths_B.max(initial=0)))
        # One mask for reading and writing replaces a Python loop over the rows.
        inside_BL = position_L < lengths_B[:, None]
        ids_BL = np.full(inside_BL.shape, pad_id, dtype=np.int64)
        ids_BL[inside_BL] = self.flat[(starts_B[:, None] + position_L)[inside_BL]]
        return ids_BL

    @property
    def not_empty(self) -> "Ragged":
        """Returns the rows that have an id. ``flat`` does not change."""
        return self.take(np.flatnonzero(self.lengths))

    def __getitem__(self, row: int) -> Ints:
        """The ids of one row [L]."""
        return self.flat[self.offsets[row] : self.offsets[row + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Sequence[int] | Ints) -> "Ragged":
        """The rows of these numbers, in their order."""
        rows_N = np.asarray(rows, dtype=np.int64)
        lengths_N = self.offsets[rows_N + 1] - self.offsets[rows_N]
        offsets = np.concatenate([[0], np.cumsum(lengths_N, dtype=np.int64)])
        # For each output element: its position minus the start of its new row plus the start of its old row. All ids of
        # a row have the same shift, so no loop is needed.
        places = np.repeat(self.offsets[rows_N] - offsets[:-1], lengths_N) + np.arange(offsets[-1])
        return Ragged(self.flat[places], offsets)

    def between(self, start: int, stop: int) -> "Ragged":
        """Returns the rows from ``start`` to before ``stop`` without copying the ids."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.flat[offsets[0] : offsets[-1]], offsets - offsets[0])

    def lists(self) -> list[list[int]]:
        """The rows as Python lists of ids."""
        flat, offsets = self.flat.tolist(), self.offsets.tolist()
        return [flat[start:stop] for start, stop in itertools.pairwise(offsets)]

    def column(self, kind: "pa.DataType") -> "pa.ListArray":
        """The rows as an Arrow list column with values of this type."""
        import pyarrow as pa

        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), pa.array(self.flat).cast(kind))


def ragged(column: "pa.ChunkedArray") -> Ragged:
    """A list column as flat ids and offsets."""
    import pyarrow.compute as pc

    # Lengths, not the column's offsets: chunks and slices have offsets that do not start at 0, and null rows count as
    # empty.
    # A null list is an empty one: single sentences have no second ids.
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return Ragged(flat.astype(np.int64), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def side_by_side(*parts: Ragged) -> Ragged:
    """Row n of the result is row n of each part, one after the other."""
    lengths_PN = np.stack([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths_PN.sum(axis=0))])
    starts_PN = offsets[:-1] + np.cumsum(lengths_PN, axis=0) - lengths_PN
    flat = np.empty(offsets[-1], dtype=np.int64)
    for part, starts_N in zip(parts, starts_PN, strict=True):
        flat[np.repeat(starts_N - part.offsets[:-1], part.lengths) + np.arange(len(part.flat))] = part.flat
    return Ragged(flat, offsets)


def stacked(parts: Sequence[Ragged]) -> Ragged:
    """Returns the rows of all parts, one part after the other. A single part is returned itself."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    flat = np.concatenate([part.flat for part in parts])
    return Ragged(flat, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def hashed(*key: Any) -> Hashes:
    """Returns a 64-bit hash of each key, whose parts are integers or integer arrays that broadcast against each other.

    Each part is mixed in by the output function of SplitMix64 (Steele, Lea and Flood 2014). Random numbers that depend
    on a row's key alone are the same for any number of processes and after any restart.
    """
    state = np.zeros(1, dtype=np.uint64)
    # Multiplication modulo 2^64 is the algorithm, so numpy's overflow warnings are not errors here.
    with np.errstate(over="ignore"):
        for part in key:
            # Adding the constant first keeps a key of zeros from hashing to zero.
            state = state + GOLDEN_GAMMA + np.asarray(part, dtype=np.int64).astype(np.uint64)
            state = (state ^ (state >> np.uint64(30))) * FIRST_FACTOR
            state = (state ^ (state >> np.uint64(27))) * SECOND_FACTOR
            state = state ^ (state >> np.uint64(31))
    return state


def uniform(hashes: Hashes) -> Floats64:
    """Hashes as numbers between 0 and 1, both excluded, 2^-52 apart."""
    # 52 bits plus one half are exact in float64. The half excludes 0 and 1, so that the logarithms of both p and 1 - p
    # are finite.
    return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def id_type(vocabulary_size: int) -> "pa.DataType":
    """Returns the smallest type that holds every id of the vocabulary."""
    import pyarrow as pa

    # Two bytes per id suffice for BERT's vocabulary and halve the size of a set's tokens.
    return pa.uint16() if vocabulary_size <= 2**16 else pa.uint32()
