"""Rows of a set of tokens, streamed in random order: a pool of row groups at a time.

Shapes: B rows of a batch, L tokens, P masked positions.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from pipeline.arrays import Ragged
from pipeline.logit_set.record_parts import Shard
from pipeline.logit_set.token_reader import Group, TokenSet
from pipeline.logit_set.tokens import MaskedRows, split_table
from pipeline.training.steps import batch_of, num_rounds, shuffled_batches

POOL_ROWS, POOL_GROUPS = 16384, 8


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


class Stream:
    """The batches of all epochs by their number; what comes at a step is a pure function of the arguments.

    Args:
        token_set: the set.
        split: one of its splits.
        batch_size: rows per batch.
        seed: of the order.
        num_processes: how many processes share each step, a batch each.
    """

    def __init__(self, token_set: TokenSet, split: str, batch_size: int, seed: int, num_processes: int = 1) -> None:
        self._set, self._batch_size, self._seed, self._processes = token_set, batch_size, seed, num_processes
        self._groups = token_set.groups(split)
        self._checked: set[str] = set()
        self._first = self._last = 0  # the steps that are in memory
        self.num_rows = sum(rows for _, rows in self._groups)

    def batch(self, step: int, process: int, pad_id: int) -> MaskedBatch:
        """The batch of a process at a step, counted from the first epoch on."""
        if not self._first <= step < self._last:
            self._move_to(step)
        rows = batch_of(self._batches, step - self._first, self._processes, process)
        return self._pool.batch(rows, pad_id)

    def _move_to(self, step: int) -> None:
        """Reads the pool that a step is in."""
        self._first = 0
        for epoch in itertools.count():
            for number, (groups, rows) in enumerate(self._pools(epoch)):
                self._last = self._first + self._steps(rows)
                if step < self._last:
                    self._pool = self._read(groups)
                    lengths = self._pool.rows.ids.lengths.tolist()
                    key = epoch * 2**20 + number
                    self._batches = shuffled_batches(lengths, self._batch_size, self._seed, key)
                    return
                self._first = self._last

    def num_steps(self, epochs: int) -> int:
        """Number of steps in so many epochs."""
        return sum(self._steps(rows) for epoch in range(epochs) for _, rows in self._pools(epoch))

    def _steps(self, num_rows: int) -> int:
        return num_rounds(math.ceil(num_rows / self._batch_size), self._processes)

    def _pools(self, epoch: int) -> list[tuple[list[Group], int]]:
        """Row groups in random order, a few of them together, with their number of rows."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._groups))
        pools: list[tuple[list[Group], int]] = []
        for place in order:
            group, rows = self._groups[place]
            if not pools or pools[-1][1] + rows > POOL_ROWS or len(pools[-1][0]) == POOL_GROUPS:
                pools.append(([], 0))
            pools[-1] = ([*pools[-1][0], group], pools[-1][1] + rows)
        return pools

    def _read(self, groups: list[Group]) -> Pool:
        new: dict[str, Shard] = {shard.path: shard for shard, _ in groups if shard.path not in self._checked}
        self._set.check_shards(list(new.values()))
        self._checked |= new.keys()
        return read_pool(self._set, groups)


def read_pool(token_set: TokenSet, groups: list[Group]) -> Pool:
    """Reads row groups into memory."""
    table = pa.concat_tables([token_set.read_group(group) for group in groups])
    return Pool(*split_table(table))
