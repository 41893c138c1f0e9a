"""The schedule of a training: steps, warm-up and learning rates, entries of the history, checkpoints and patience."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch

from pipeline.training.best_epoch import best_of
from pipeline.training.run import Progress


@dataclass(frozen=True)
class Schedule:
    """The number of steps of a training, and the steps at which it evaluates, saves or stops.

    Attributes:
        total_steps: steps of the whole run.
        entry_steps: steps between two entries of the history. The last step also has an entry.
        unit: the unit of entries. An ``epoch`` has ``entry_steps`` steps.
        seed: the seed of random numbers in a step, mostly for dropout.
        warmup_steps: steps until the peak of the learning rate. Below 1, a ratio of all steps.
        save_steps: steps between two checkpoints. Every entry also has one.
        patience: number of entries without improvement after which the run stops.
        save_best: whether the weights of the best entry are saved, or those of the last one.
    """

    total_steps: int
    entry_steps: int
    unit: Literal["epoch", "step"]
    seed: int
    warmup_steps: float = 0
    save_steps: int | None = None
    patience: int | None = None
    save_best: bool = True

    @classmethod
    def of_epochs(cls, steps_per_epoch: int, num_epochs: int, seed: int, **others: Any) -> Self:
        """Returns a schedule with an entry and a checkpoint for each epoch."""
        return cls(steps_per_epoch * num_epochs, steps_per_epoch, "epoch", seed, **others)

    def learning_rate(self, step: int) -> float:
        """Returns the factor on the peak learning rate at a step."""
        ratio = self.warmup_steps
        return linear_decay(step, self.total_steps, int(ratio * self.total_steps if ratio < 1 else ratio))

    def is_entry(self, step: int) -> bool:
        """Whether the history has an entry after so many steps."""
        return step % self.entry_steps == 0 or step == self.total_steps

    def next_stop(self, step: int) -> int:
        """Returns the number of steps until the next entry, checkpoint or end."""
        # Running to the next stop without checks keeps the inner loop free of anything but steps.
        intervals = (self.entry_steps, self.save_steps or self.entry_steps)
        return min(self.total_steps, *((step // interval + 1) * interval for interval in intervals))

    def is_over(self, progress: Progress) -> bool:
        """Whether the last step has been taken, or patience is exhausted."""
        if progress.step >= self.total_steps or self.patience is None or not progress.history:
            return progress.step >= self.total_steps
        # The best of equal entries is the first one, so a plateau uses up patience.
        entries_since_best = len(progress.history) - 1 - progress.history.index(best_of(progress.history))
        return entries_since_best >= self.patience


def linear_decay(step: int, total_steps: int, warmup_steps: int = 0) -> float:
    """Returns the factor on the learning rate: up linearly over the warm-up, then down linearly to 0."""
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def scale_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets the learning rate of every group to ``factor`` times its original rate."""
    for group in optimizer.param_groups:
        # Factors apply to the original rate. Multiplying the current rate would compound them.
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
