"""Rows of a set that is too large for memory, streamed in random order: a pool of row groups at a time."""

import itertools
import math
from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

import numpy as np

from pipeline.arrays import Ints
from pipeline.sets.group_reader import Group, GroupedSet
from pipeline.sets.record_parts import Shard
from pipeline.training.steps import batch_of, num_rounds, shuffled_batches

POOL_ROWS, POOL_GROUPS = 16384, 8


class RowPool(Protocol):
    """Row groups in memory."""

    @property
    def lengths(self) -> Ints:
        """Tokens per row."""


P = TypeVar("P", bound=RowPool)


class GroupStream(Generic[P]):
    """The batches of all epochs by their number; what comes at a step is a pure function of the arguments.

    Args:
        grouped: the set.
        split: one of its splits.
        batch_size: rows per batch.
        seed: of the order.
        num_processes: how many processes share each step, a batch each.
    """

    def __init__(self, grouped: GroupedSet, split: str, batch_size: int, seed: int, num_processes: int = 1) -> None:
        self._set, self._batch_size, self._seed, self._processes = grouped, batch_size, seed, num_processes
        self._groups = grouped.groups(split)
        self._checked: set[str] = set()
        self._first = self._last = 0  # the steps that are in memory
        self.num_rows = sum(rows for _, rows in self._groups)

    @abstractmethod
    def read_pool(self, groups: list[Group]) -> P:
        """Reads row groups, whose files have been checked, into memory."""

    def rows_at(self, step: int, process: int) -> tuple[P, list[int]]:
        """The batch of a process at a step, counted from the first epoch on: a pool, and numbers of its rows."""
        if not self._first <= step < self._last:
            self._move_to(step)
        return self._pool, batch_of(self._batches, step - self._first, self._processes, process)

    def _move_to(self, step: int) -> None:
        """Reads the pool that a step is in."""
        self._first = 0
        for epoch in itertools.count():
            for number, (groups, rows) in enumerate(self._pools(epoch)):
                self._last = self._first + self._steps(rows)
                if step < self._last:
                    self._pool = self._read(groups)
                    lengths = self._pool.lengths.tolist()
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

    def _read(self, groups: list[Group]) -> P:
        new: dict[str, Shard] = {shard.path: shard for shard, _ in groups if shard.path not in self._checked}
        self._set.check_shards(list(new.values()))
        self._checked |= new.keys()
        return self.read_pool(groups)
