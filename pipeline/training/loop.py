"""The training loop of every model: learning rate, checkpoints, evaluation, the best kept, divergence told."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from pipeline import console
from pipeline.config import ReportTo
from pipeline.errors import ConfigError
from pipeline.training.run import Progress, Run
from pipeline.training.run_record import Entry, Metrics, best_of, last_is_best
from pipeline.training.steps import linear_decay, scale_learning_rates, seed_step
from pipeline.training.tracker import tracker


class Learner(Protocol):
    """What is trained, and on what; the loop asks it for one step after another.

    Attributes:
        model: its state is what checkpoints keep.
        optimizer: made with the peak learning rate of each group.
        data_state: where the data stand, if the number of the step does not tell; JSON, kept in checkpoints.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    data_state: Any = None

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step, a function of its number, weights, optimizer and `data_state` alone.

        Returns:
            The mean loss, a scalar, and of how many rows.
        """
        ...

    def evaluate(self) -> Metrics:
        """Scores the model on each dev split; the first metric of the first one decides which weights are best."""
        ...

    def keep(self) -> None:
        """Writes the weights as they are now to the run's folder."""
        ...

    def catch_up(self) -> None:
        """Brings weights and optimizer up to date, where steps put work off; called before they are read."""
        return


@dataclass(frozen=True)
class Schedule:
    """What happens at which step.

    Attributes:
        total_steps: steps of the whole run.
        entry_steps: steps between two entries of the history; the last step has one too.
        unit: what entries are counted in; an ``epoch`` has ``entry_steps`` steps.
        seed: of what is drawn at random in a step, dropout above all.
        warmup_steps: steps until the learning rate has its peak.
        save_steps: steps between two checkpoints; every entry has one anyhow.
        patience: entries without a better one after which the run stops.
        keep_best: whether the best entry's weights are kept, or the last one's.
    """

    total_steps: int
    entry_steps: int
    unit: Literal["epoch", "step"]
    seed: int
    warmup_steps: int = 0
    save_steps: int | None = None
    patience: int | None = None
    keep_best: bool = True

    def is_entry(self, step: int) -> bool:
        """Whether the history has an entry after so many steps."""
        return step % self.entry_steps == 0 or step == self.total_steps

    def next_stop(self, step: int) -> int:
        """The number of steps after which there is something else to do than another step."""
        intervals = (self.entry_steps, self.save_steps or self.entry_steps)
        return min(self.total_steps, *((step // interval + 1) * interval for interval in intervals))

    def is_over(self, progress: Progress) -> bool:
        """Whether the last step has been taken, or patience is lost."""
        if progress.step >= self.total_steps or self.patience is None or not progress.history:
            return progress.step >= self.total_steps
        entries_since_best = len(progress.history) - 1 - progress.history.index(best_of(progress.history))
        return entries_since_best >= self.patience


def train(run: Run, learner: Learner, schedule: Schedule, report_to: ReportTo = "none") -> list[Entry]:
    """Trains to the end of the schedule, going on from the run's checkpoint if there is one.

    Args:
        run: has been started.
        learner: is trained in place.
        schedule: what happens at which step.
        report_to: who is told of each entry of the history.

    Returns:
        The history: per entry its ``epoch`` or ``step``, mean ``loss`` of the rows since the one before, and
        ``metrics`` by dev split.

    Raises:
        ConfigError: if training diverges.
        IntegrityError: if the checkpoint is damaged.
    """
    progress = run.resume(learner.model, learner.optimizer)
    learner.data_state = progress.data_state
    run.tell(progress.history)  # the last try may have been stopped before it could
    _keep_if_best(run, learner, schedule, progress)
    told = tracker(report_to if run.is_main else "none", run.folder)
    with console.progress(schedule.total_steps, "training") as bar, told as track:
        bar.advance(progress.step)
        while not schedule.is_over(progress):
            _train_to_next_stop(run, learner, schedule, progress, bar)
            _check_finite(run, schedule, progress)
            learner.catch_up()
            if schedule.is_entry(progress.step):
                _evaluate(learner, schedule, progress)
            progress.data_state = learner.data_state
            run.save(learner.model, learner.optimizer, progress)
            if schedule.is_entry(progress.step):
                run.tell(progress.history)
                track(progress.history[-1])
            _keep_if_best(run, learner, schedule, progress)
    if run.is_main and not schedule.keep_best:
        learner.keep()
    return progress.history


def _train_to_next_stop(run: Run, learner: Learner, schedule: Schedule, progress: Progress, bar: console.Steps) -> None:
    loss_sum: float | torch.Tensor = progress.loss_sum
    learner.model.train()
    for step in range(progress.step, schedule.next_stop(progress.step)):
        scale_learning_rates(learner.optimizer, linear_decay(step, schedule.total_steps, schedule.warmup_steps))
        seed_step(schedule.seed, step + 1, run.rank)
        loss, num_rows = learner.train_step(step)
        loss_sum = loss_sum + loss.detach() * num_rows
        progress.num_rows += num_rows
        progress.step += 1
        bar.advance()
    progress.loss_sum = float(loss_sum)


def _evaluate(learner: Learner, schedule: Schedule, progress: Progress) -> None:
    """Adds an entry to the history."""
    number = progress.step // schedule.entry_steps if schedule.unit == "epoch" else progress.step
    loss = progress.loss_sum / progress.num_rows
    learner.model.eval()
    metrics = learner.evaluate()
    scores = [f"{split} {name} {value:.4f}" for split, values in metrics.items() for name, value in values.items()]
    console.note(f"{schedule.unit} {number}: " + ", ".join([f"loss {loss:.4f}", *scores]))
    progress.history.append({schedule.unit: number, "loss": loss, "metrics": metrics})
    progress.loss_sum, progress.num_rows = 0.0, 0


def _keep_if_best(run: Run, learner: Learner, schedule: Schedule, progress: Progress) -> None:
    """Keeps the weights if they are those of the last entry, and it is the best so far."""
    if run.is_main and schedule.keep_best and schedule.is_entry(progress.step) and last_is_best(progress.history):
        learner.keep()


def _check_finite(run: Run, schedule: Schedule, progress: Progress) -> None:
    if math.isfinite(progress.loss_sum):
        return
    message = f"the loss at step {progress.step:,} is {progress.loss_sum}: training diverged; lower --learning-rate"
    if run.checkpoint.exists():
        message += f" and choose another --output-dir than {run.folder}"
    if schedule.keep_best and progress.history:
        message += (
            f", which keeps the best weights so far, of {schedule.unit} {best_of(progress.history)[schedule.unit]}"
        )
    raise ConfigError(message)
