"""Rows of a set of sentences in memory, and batches of them.

Shapes: N sentences of a pool, B of a batch, T tokens of a batch end to end, S = B + 1 starts, H width of a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import torch

from pipeline.arrays import Floats, Ints, Ragged, ragged
from pipeline.sets.group_reader import Group
from pipeline.sets.sentence_reader import SentenceSet
from student.pretrain.stream import GroupStream


@dataclass(frozen=True)
class VectorBatch:
    """Sentences end to end, and the teacher's vectors.

    Attributes:
        ids_T: int64.
        starts_S: int64; sentence b is ``ids_T[starts_S[b] : starts_S[b + 1]]``.
        vectors_BH: float32.
    """

    ids_T: torch.Tensor
    starts_S: torch.Tensor
    vectors_BH: torch.Tensor


@dataclass(frozen=True)
class VectorPool:
    """Row groups in memory: sentences, and their vectors."""

    ids: Ragged
    vectors_NH: Floats

    @property
    def lengths(self) -> Ints:
        """Tokens per sentence."""
        return self.ids.lengths

    def batch(self, rows: list[int]) -> VectorBatch:
        """The batch of some of its sentences."""
        taken = self.ids.take(rows)
        return VectorBatch(
            torch.from_numpy(taken.flat), torch.from_numpy(taken.offsets), torch.from_numpy(self.vectors_NH[rows])
        )


class VectorStream(GroupStream[VectorPool]):
    """The batches of all epochs by their number, see `GroupStream`."""

    def __init__(
        self, sentence_set: SentenceSet, split: str, batch_size: int, seed: int, num_processes: int = 1
    ) -> None:
        super().__init__(sentence_set, split, batch_size, seed, num_processes)
        self._sentence_set = sentence_set

    def read_pool(self, groups: list[Group]) -> VectorPool:
        """See `GroupStream`."""
        return read_vectors(self._sentence_set, groups)

    def batch(self, step: int, process: int) -> VectorBatch:
        """The batch of a process at a step, counted from the first epoch on."""
        pool, rows = self.rows_at(step, process)
        return pool.batch(rows)


def read_vectors(sentence_set: SentenceSet, groups: list[Group]) -> VectorPool:
    """Reads row groups into memory."""
    table = pa.concat_tables([sentence_set.read_group(group) for group in groups])
    return VectorPool(ragged(table.column("ids")), sentence_set.decode(table))


def first_batches(sentence_set: SentenceSet, split: str, num_rows: int, batch_size: int) -> Iterator[VectorBatch]:
    """Batches of the first so many sentences of a split, once their files have been checked."""
    left = num_rows
    for group, rows_of_group in sentence_set.groups(split):
        if left <= 0:
            return
        sentence_set.check_shards([group[0]])
        pool = read_vectors(sentence_set, [group])
        rows = range(min(left, rows_of_group))
        for start in range(0, len(rows), batch_size):
            yield pool.batch(list(rows[start : start + batch_size]))
        left -= rows_of_group
