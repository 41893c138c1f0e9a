"""The order of training rows: batches by the number of the step, and held-out rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.arrays import Ints
from pipeline.errors import DataError

# Manifests refuse a hyphen in the name of a split, so this name never collides with one of theirs.
HELD_OUT = "held-out"
# Sorting within 50 batches removes most padding, and the rows of a batch still change every epoch.
WINDOW_BATCHES = 50


def shuffled_batches(lengths: Sequence[int] | Ints, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Divides rows into random batches of similar lengths: shuffled, sorted within windows of batches, shuffled again.

    A pure function of its arguments, so that a resumed epoch sees the same batches.

    Args:
        lengths: tokens per row.
        batch_size: rows per batch. The last batch of a window may have fewer.
        seed: seed of the run.
        epoch: number of the epoch.
    """
    # The generator depends on seed and epoch alone, so a resumed run needs no random state from a checkpoint.
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    lengths_N = np.asarray(lengths)
    batches = []
    for start in range(0, len(order), WINDOW_BATCHES * batch_size):
        window = order[start : start + WINDOW_BATCHES * batch_size]
        # A stable sort keeps the shuffled order among equal lengths, also across versions of numpy.
        window = window[np.argsort(lengths_N[window], kind="stable")]
        batches += [window[k : k + batch_size].tolist() for k in range(0, len(window), batch_size)]
    # Without this shuffle each window would run from short to long rows, which biases the gradient over time.
    return [batches[k] for k in random.permutation(len(batches))]


def num_rounds(num_batches: int, num_processes: int) -> int:
    """Returns the number of steps in which so many processes, with a batch each, use all batches."""
    return math.ceil(num_batches / num_processes)


def batch_of(batches: list[list[int]], step: int, num_processes: int, rank: int) -> list[int]:
    """Returns the batch of a process at a step. An incomplete last round is filled with the first batches."""
    # Every process must take every step, otherwise the others would wait for its gradients forever.
    return batches[(step * num_processes + rank) % len(batches)]


class EpochBatches:
    """Batches by the number of the step. Every epoch has new batches of the same rows.

    Args:
        lengths: tokens per row.
        batch_size: rows per batch.
        seed: seed of the run.
        num_processes: the number of processes that share each step, with a batch each.
        rank: number of this process.
    """

    state: Any = None

    def __init__(
        self, lengths: Sequence[int] | Ints, batch_size: int, seed: int, num_processes: int = 1, rank: int = 0
    ) -> None:
        self._arguments, self._num_processes, self._rank = (lengths, batch_size, seed), num_processes, rank
        self._epoch, self._batches = -1, list[list[int]]()
        self.steps_per_epoch = num_rounds(math.ceil(len(lengths) / batch_size), num_processes)

    def at(self, step: int) -> list[int]:
        """Returns the row numbers of this process's batch at a step, counted from the first epoch on."""
        epoch, number = divmod(step, self.steps_per_epoch)
        # Batches of one epoch are cached, because shuffling all rows at every step would dominate small models.
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, shuffled_batches(*self._arguments, epoch)
        return batch_of(self._batches, number, self._num_processes, self._rank)


@dataclass(frozen=True)
class TaskBatch:
    """A batch of one of several tasks: the task's number, and the numbers of its rows."""

    task: int
    rows: list[int]

    def __len__(self) -> int:
        return len(self.rows)


class MixedBatches:
    """Batches of several tasks.

    Each batch belongs to one task. Every epoch has all batches of all tasks in random order.

    Args:
        parts: the batches of each task.
        seed: seed of the run.
    """

    state: Any = None

    def __init__(self, parts: Sequence[EpochBatches], seed: int) -> None:
        self._parts, self._seed = parts, seed
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)
        self.steps_per_epoch = sum(part.steps_per_epoch for part in parts)

    def at(self, step: int) -> TaskBatch:
        """Returns the batch at a step, counted from the first epoch on."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            # Each task appears in proportion to its batches, as in MT-DNN (Liu et al. 2019), so no task weights are
            # needed.
            turns = np.repeat(np.arange(len(self._parts)), [part.steps_per_epoch for part in self._parts])
            # The third number keeps this generator apart from the one that shuffles rows with the same seed and epoch.
            random = np.random.default_rng([self._seed, epoch, len(self._parts)])
            self._epoch, self._order = epoch, random.permutation(turns)
        turn = int(self._order[number])
        # A task's batches are in random order already, so its k-th turn can take its k-th batch.
        before = int((self._order[:number] == turn).sum())
        part = self._parts[turn]
        return TaskBatch(turn, part.at(epoch * part.steps_per_epoch + before))


def held_out_rows(group_N: Ints, share: float) -> Ints:
    """Returns the numbers of the held-out rows, int64, ascending. Rows of one group are held out together.

    They depend only on the groups in the order of their first rows, and on the share.

    A teacher and its student that use the same share of all rows of a task therefore hold out the same rows.

    Raises:
        DataError: if no row would be held out, or no row would be left.
    """
    num_rows = len(group_N)
    count = round(share * num_rows)
    if not 0 < count < num_rows:
        raise DataError(f"--held-out {share:g}: that is {count} of {num_rows} training rows. Choose another share.")
    _, first_G, number_N = np.unique(group_N, return_index=True, return_inverse=True)
    in_order = first_G.argsort()
    # The seed is fixed, not the run's: otherwise a teacher would train on rows that its student holds out.
    order = in_order[np.random.default_rng(0).permutation(len(in_order))]
    is_taken_G = np.zeros(len(order), dtype=bool)
    is_taken_G[order] = filled(np.bincount(number_N)[order].tolist(), count)
    if is_taken_G.all():
        raise DataError(f"--held-out {share:g}: all {num_rows} training rows are in one group, which is not divided.")
    return np.flatnonzero(is_taken_G[number_N])


def filled(sizes: Sequence[int], count: int) -> list[bool]:
    """Returns which groups together have at most so many rows: each one that fits after those before it.

    The smallest one is taken if none fits.
    """
    taken = []
    for size in sizes:
        taken.append(size <= count)
        count -= size * taken[-1]
    return taken if any(taken) else [place == sizes.index(min(sizes)) for place in range(len(sizes))]
