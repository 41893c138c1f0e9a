"""Rows of a set of tokens in memory, and batches of them.

Shapes: B rows of a batch, L tokens, P masked positions.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from pipeline.arrays import Ints, Ragged
from pipeline.sets.group_reader import Group
from pipeline.sets.token_reader import TokenSet
from pipeline.sets.tokens import MaskedRows, split_table
from student.pretrain.stream import GroupStream


@dataclass(frozen=True)
class MaskedBatch:
    """Masked sequences, and what the teacher predicted at their masked positions.

    Attributes:
        ids_BL: int64, padded at the end.
        row_P: int64, a position's row.
        place_P: int64, its place in the row.
        target_P: int64, what stood there.
        predictions: the codec's columns, an entry per position.
    """

    ids_BL: torch.Tensor
    row_P: torch.Tensor
    place_P: torch.Tensor
    target_P: torch.Tensor
    predictions: dict[str, pa.Array]


@dataclass(frozen=True)
class Pool:
    """Row groups in memory.

    Attributes:
        rows: masked sequences.
        predictions: the codec's columns, an entry per position of all rows.
    """

    rows: MaskedRows
    predictions: dict[str, pa.Array]

    @property
    def lengths(self) -> Ints:
        """Tokens per row."""
        return self.rows.ids.lengths

    def batch(self, rows: list[int], pad_id: int) -> MaskedBatch:
        """The batch of some of its rows, with all their masked positions."""
        positions = self.rows.positions
        places = Ragged(np.arange(len(positions.flat)), positions.offsets).take(rows)
        chosen_P = places.flat
        indices = pa.array(chosen_P)
        return MaskedBatch(
            torch.from_numpy(self.rows.ids.padded(rows, pad_id)),
            torch.from_numpy(np.repeat(np.arange(len(rows)), places.lengths)),
            torch.from_numpy(positions.flat[chosen_P]),
            torch.from_numpy(self.rows.targets.flat[chosen_P]),
            {name: column.take(indices) for name, column in self.predictions.items()},
        )


class Stream(GroupStream[Pool]):
    """The masked batches of all epochs by their number, see `GroupStream`."""

    def __init__(self, token_set: TokenSet, split: str, batch_size: int, seed: int, num_processes: int = 1) -> None:
        super().__init__(token_set, split, batch_size, seed, num_processes)
        self._token_set = token_set

    def read_pool(self, groups: list[Group]) -> Pool:
        """See `GroupStream`."""
        return read_pool(self._token_set, groups)

    def batch(self, step: int, process: int, pad_id: int) -> MaskedBatch:
        """The batch of a process at a step, counted from the first epoch on."""
        pool, rows = self.rows_at(step, process)
        return pool.batch(rows, pad_id)


def read_pool(token_set: TokenSet, groups: list[Group]) -> Pool:
    """Reads row groups into memory."""
    table = pa.concat_tables([token_set.read_group(group) for group in groups])
    return Pool(*split_table(table))
