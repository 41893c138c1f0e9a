"""The training loop of every model: steps, checkpoints, evaluation, saving the best weights, detecting divergence."""

import math
from collections.abc import Sized
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import console
from pipeline.errors import ConfigError
from pipeline.shared_settings import ReportTo
from pipeline.training.best_epoch import best_of, last_is_best
from pipeline.training.run import Progress, Run
from pipeline.training.run_record import Entry, Metrics, tracker
from pipeline.training.schedule import Schedule, scale_learning_rates

B = TypeVar("B", bound=Sized)
# `Batches` only returns batches, so its parameter is covariant. mypy requires the distinction.
B_co = TypeVar("B_co", bound=Sized, covariant=True)


class Batches(Protocol[B_co]):
    """The batches of a training.

    Attributes:
        state: the position in the data as JSON for checkpoints, if the number of the step does not determine it.
    """

    state: Any

    def at(self, step: int) -> B_co:
        """Returns the batch of this process at a step, a function of ``step`` and ``state``."""
        ...


class TrainTask(Protocol[B]):
    """A training task: a model, its training rows, their loss, its evaluation, and the way to save it.

    Attributes:
        model: the model, whose state checkpoints contain.
        batches: the training rows of each step.
    """

    model: nn.Module
    batches: Batches[B]

    def loss(self, batch: B) -> Tensor:
        """Returns the mean loss over the batch, a scalar that only depends on batch, weights and PyTorch's seed."""
        ...

    def evaluate(self) -> Metrics:
        """Scores the model on each dev split. The first metric of the first split decides which weights are best."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the current weights to the run's folder."""
        ...

    def finish(self) -> None:
        """Makes the last changes to the weights, after the last step and before its evaluation."""
        return


class TrainOptimizer:
    """Moves weights down the gradient of a loss.

    Args:
        inner: PyTorch's optimizer, made with the peak learning rate of each group. Its state is stored in checkpoints.
        max_grad_norm: gradients are clipped to this norm. Default: no clipping.
    """

    def __init__(self, inner: torch.optim.Optimizer, max_grad_norm: float | None = None) -> None:
        self.inner, self._max_grad_norm = inner, max_grad_norm

    def step(self, loss: Tensor) -> Tensor:
        """Takes one step and returns the loss without its graph."""
        loss = self.backward(loss)
        if self._max_grad_norm is not None:
            self.clip(self._max_grad_norm)
        self.inner.step()
        # Gradients are freed after the step and not before, so that evaluation has their memory.
        self.inner.zero_grad()
        return loss

    def backward(self, loss: Tensor) -> Tensor:
        """Computes the gradients of a loss, averaged over processes. Returns the loss without its graph."""
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def clip(self, max_norm: float) -> None:
        """Scales all gradients so that their norm is at most this."""
        parameters = [parameter for group in self.inner.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(parameters, max_norm)

    def catch_up(self) -> None:
        """Applies deferred updates of weights and state. Called before either is read."""


def fit(
    run: Run, task: TrainTask[B], optimizer: TrainOptimizer, schedule: Schedule, report_to: ReportTo = "none"
) -> list[Entry]:
    """Trains to the end of the schedule, resuming from the run's checkpoint if there is one.

    Args:
        run: the run, after its `start`.
        task: the task, whose model is trained in place. Several tasks on one encoder are one, a `JointTask`.
        optimizer: the optimizer of the trained weights.
        schedule: the steps, entries and checkpoints.
        report_to: the tracker of the entries of the history.

    Returns: The history: per entry its ``epoch`` or ``step``, mean ``loss`` since the last one, ``metrics`` by split.

    Raises:
        ConfigError: if training diverges.
        IntegrityError: if the checkpoint is damaged.
    """
    # Everything that follows depends on the progress alone, which makes a resumed run equal to an undisturbed one.
    progress = run.resume(task.model, optimizer.inner)
    task.batches.state = progress.data_state
    # A killed run may have written its checkpoint without the metrics of the same entry.
    run.write_metrics(progress.history)
    # The run may have been killed between checkpoint and weights, so the weights are written again here.
    _save_if_best(run, task, schedule, progress)
    tracking = tracker(report_to if run.is_main else "none", run.folder)
    with console.progress(schedule.total_steps, "training") as bar, tracking as track:
        bar.advance(progress.step)
        while not schedule.is_over(progress):
            _train_to_next_stop(run, task, optimizer, schedule, progress, bar)
            # A diverged model must not replace the last good checkpoint, so this check precedes every write.
            _check_finite(run, schedule, progress)
            # Evaluation and checkpoint read whole tables, so deferred updates of unused rows are applied first.
            optimizer.catch_up()
            # Weights change for the last time before they are scored, so the score belongs to the saved student.
            if progress.step == schedule.total_steps:
                task.finish()
            if schedule.is_entry(progress.step):
                _evaluate(task, schedule, progress)
            progress.data_state = task.batches.state
            # The checkpoint precedes the weights. If the run is killed in between, resuming saves the entry's weights.
            run.save(task.model, optimizer.inner, progress)
            if schedule.is_entry(progress.step):
                run.write_metrics(progress.history)
                track(progress.history[-1])
            _save_if_best(run, task, schedule, progress)
    # Without a best entry the last weights count.
    if run.is_main and not schedule.save_best:
        task.save(run.folder)
    return progress.history


def train_step(task: TrainTask[B], optimizer: TrainOptimizer, step: int) -> tuple[Tensor, int]:
    """Takes the step with this number. Returns its mean loss, a scalar, and the number of its rows or positions."""
    batch = task.batches.at(step)
    return optimizer.step(task.loss(batch)), len(batch)


def _train_to_next_stop(
    run: Run, task: TrainTask[B], optimizer: TrainOptimizer, schedule: Schedule, progress: Progress, bar: console.Steps
) -> None:
    # The sum becomes a tensor at the first step, because reading a number at each step would wait for the GPU.
    loss_sum: float | Tensor = progress.loss_sum
    # The last evaluation left the model without dropout.
    task.model.train()
    for step in range(progress.step, schedule.next_stop(progress.step)):
        scale_learning_rates(optimizer.inner, schedule.learning_rate(step))
        # Step 0 seeds the initial weights, so the numbers of training steps start at 1.
        seed_step(schedule.seed, step + 1, run.rank)
        loss, count = train_step(task, optimizer, step)
        loss_sum = loss_sum + loss * count
        progress.num_rows += count
        progress.step += 1
        bar.advance()
    progress.loss_sum = float(loss_sum)


def _evaluate(task: TrainTask[B], schedule: Schedule, progress: Progress) -> None:
    number = progress.step // schedule.entry_steps if schedule.unit == "epoch" else progress.step
    # Batches differ in size, so losses are weighted by rows instead of averaged over steps.
    loss = progress.loss_sum / progress.num_rows
    task.model.eval()
    metrics = task.evaluate()
    scores = [f"{split} {name} {value:.4f}" for split, values in metrics.items() for name, value in values.items()]
    console.note(f"{schedule.unit} {number}: " + ", ".join([f"loss {loss:.4f}", *scores]))
    progress.history.append({schedule.unit: number, "loss": loss, "metrics": metrics})
    # The next entry reports only rows that were seen after this one.
    progress.loss_sum, progress.num_rows = 0.0, 0


def _save_if_best(run: Run, task: TrainTask[B], schedule: Schedule, progress: Progress) -> None:
    if run.is_main and schedule.save_best and schedule.is_entry(progress.step) and last_is_best(progress.history):
        task.save(run.folder)


def _check_finite(run: Run, schedule: Schedule, progress: Progress) -> None:
    # A single NaN or infinite loss makes the whole sum NaN or infinite, so one check per stop suffices.
    if math.isfinite(progress.loss_sum):
        return
    message = f"the loss at step {progress.step:,} is {progress.loss_sum}: training diverged. Lower --learning-rate"
    if run.checkpoint.exists():
        message += f" and choose another --output-dir than {run.folder}"
    if schedule.save_best and progress.history:
        message += (
            f", which keeps the best weights so far, of {schedule.unit} {best_of(progress.history)[schedule.unit]}"
        )
    raise ConfigError(message)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seeds dropout for one step, so that a resumed run draws the same numbers as an undisturbed one.

    `torch.manual_seed` would also store a traceback for every device that is not in use.
    """
    # A hash of the three numbers avoids streams that repeat, as seed + step would across runs.
    number = int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
    torch.default_generator.manual_seed(number)
    # Seeding CUDA would otherwise initialise it, which takes seconds and memory in a CPU run.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
