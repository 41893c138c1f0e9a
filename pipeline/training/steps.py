"""What the number of a step decides: its batch, its learning rate, its random numbers."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.arrays import Ints

WINDOW_BATCHES = 50


def shuffled_batches(lengths: Sequence[int] | Ints, batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Cuts rows into random batches of like length: shuffled, sorted within windows of batches, shuffled again.

    A pure function of its arguments, so that a resumed epoch sees the same batches.

    Args:
        lengths: tokens per row.
        batch_size: rows per batch; the last of a window may have fewer.
        seed: seed of the run.
        epoch: number of the epoch.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    lengths_N = np.asarray(lengths)
    batches = []
    for start in range(0, len(order), WINDOW_BATCHES * batch_size):
        window = order[start : start + WINDOW_BATCHES * batch_size]
        window = window[np.argsort(lengths_N[window], kind="stable")]
        batches += [window[k : k + batch_size].tolist() for k in range(0, len(window), batch_size)]
    return [batches[k] for k in random.permutation(len(batches))]


def num_rounds(num_batches: int, num_processes: int) -> int:
    """Steps in which so many processes, a batch each, go through all batches."""
    return math.ceil(num_batches / num_processes)


def batch_of(batches: list[list[int]], step: int, num_processes: int, rank: int) -> list[int]:
    """The batch of a process at a step; a short last round is filled up with the first batches."""
    return batches[(step * num_processes + rank) % len(batches)]


class EpochBatches:
    """Batches of the same rows in every epoch anew, by the number of the step.

    Args:
        lengths: tokens per row.
        batch_size: rows per batch.
        seed: seed of the run.
        num_processes: how many processes share each step, a batch each.
        rank: number of this process.
    """

    def __init__(
        self, lengths: Sequence[int] | Ints, batch_size: int, seed: int, num_processes: int = 1, rank: int = 0
    ) -> None:
        self._arguments, self._num_processes, self._rank = (lengths, batch_size, seed), num_processes, rank
        self._epoch, self._batches = -1, list[list[int]]()
        self.steps_per_epoch = num_rounds(math.ceil(len(lengths) / batch_size), num_processes)

    def at(self, step: int) -> list[int]:
        """Row numbers of this process's batch at a step, counted from the first epoch on."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, shuffled_batches(*self._arguments, epoch)
        return batch_of(self._batches, number, self._num_processes, self._rank)


class MixedBatches:
    """Batches of several lists of rows, each of one list: in every epoch all of them, in random order.

    Args:
        parts: the batches of each list.
        seed: seed of the run.
    """

    def __init__(self, parts: Sequence[EpochBatches], seed: int) -> None:
        self._parts, self._seed = parts, seed
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)
        self.steps_per_epoch = sum(part.steps_per_epoch for part in parts)

    def at(self, step: int) -> tuple[int, list[int]]:
        """The number of the list whose turn it is at a step, and the numbers of its rows."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            turns = np.repeat(np.arange(len(self._parts)), [part.steps_per_epoch for part in self._parts])
            random = np.random.default_rng([self._seed, epoch, len(self._parts)])
            self._epoch, self._order = epoch, random.permutation(turns)
        turn = int(self._order[number])
        before = int((self._order[:number] == turn).sum())  # a list's own batches stand in random order already
        part = self._parts[turn]
        return turn, part.at(epoch * part.steps_per_epoch + before)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seeds dropout for one step, so that a resumed run draws what an undisturbed one would.

    `torch.manual_seed` would do the same, and keep a record of its caller for every device that is not in use.
    """
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)


def linear_decay(step: int, total_steps: int, warmup_steps: int = 0) -> float:
    """Factor on the learning rate: up linearly over the warm-up, then down linearly to 0."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def scale_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of every group to ``factor`` of the one that it was made with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
