"""The first of two stages: a student's layers alone, before its answers (How to Distill your BERT, section 3).

The second stage starts from what this one has written, with a learning rate and an optimizer of its own.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.device import to_device
from pipeline.training import loop
from pipeline.training.loop import Learner, Schedule
from pipeline.training.run import Run
from pipeline.training.run_record import Entry, Metrics, read_run_record
from student.config import TrainConfig
from student.data import Examples
from student.model.model import Student
from student.model.weights import load_weights
from student.train.layer_loss import LayerLoss
from student.train.learner import make_batches, make_optimizer, rows_of_batch, take_step

FOLDER, RECORD = "intermediate", "stage.json"


class LayerLearner(Learner):
    """A student whose layers are brought near its teacher's.

    Args:
        config: the settings.
        student: is trained in place, all but its head.
        layers: the loss, whose maps are trained, too.
        examples: the training rows; those that the teacher's layers are not known of are left out.
        keep: writes the student's weights.
    """

    def __init__(
        self,
        config: TrainConfig,
        student: Student,
        layers: LayerLoss,
        examples: Examples,
        keep: Callable[[], None],
    ) -> None:
        self.model = nn.ModuleDict({"student": student, "layers": layers})
        self.optimizer = make_optimizer(config, student.encoder, layers)
        self._config, self._student, self._layers, self._keep = config, student, layers, keep
        self._examples, self._known = examples, np.flatnonzero(layers.is_known_N)
        self._batches = make_batches(config, student.config.head, examples.lengths[self._known])

    def schedule(self) -> Schedule:
        """An entry for each epoch; the last weights are kept."""
        steps = self._batches.steps_per_epoch
        return Schedule(
            total_steps=steps * self._config.intermediate_epochs,
            entry_steps=steps,
            unit="epoch",
            seed=self._config.seed,
            warmup_steps=self._config.warmup_steps,
            keep_best=False,
        )

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns its mean loss and number of rows."""
        rows, device = self._known[self._batches.at(step)], self._student.device
        ids_T, starts_S = (to_device(part, device) for part in self._examples.batch(rows))
        used = rows_of_batch(self.optimizer, self._student.encoder, ids_T, starts_S)
        loss = self._layers(*self._layers.read(self._student, ids_T, starts_S, used), starts_S, rows)
        take_step(self.optimizer, loss, self._config.max_grad_norm)
        return loss, len(rows)

    def evaluate(self) -> Metrics:
        """Nothing: the head has not been trained yet."""
        return {}

    def keep(self) -> None:
        """Writes the student's weights."""
        self._keep()

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them."""
        self.optimizer.catch_up()


def stage_history(folder: Path) -> dict[str, list[Entry]]:
    """The losses of the stage's epochs as ``intermediate``, for the record of its run; nothing if there was none."""
    path = folder / FOLDER / RECORD
    return {"intermediate": read_run_record(path)["result"]["history"]} if path.exists() else {}


def end_stage(folder: Path) -> None:
    """Removes what the stage has left in a run's folder, once the run is finished."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def learn_layers(
    config: TrainConfig,
    student: Student,
    layers: LayerLoss,
    examples: Examples,
    whole: Run,
) -> None:
    """Trains a student in place on layers alone, or takes over what an earlier try has finished.

    Args:
        config: the settings.
        student: what the run trains.
        layers: the loss.
        examples: the training rows.
        whole: the run; this stage has a folder of its own in the run's.
    """
    record, path = whole.record(), whole.folder / FOLDER / RECORD
    if path.exists() and read_run_record(path)["settings"] != record["settings"]:
        end_stage(whole.folder)  # of a run that was given up before its first checkpoint
    run = Run(whole.folder / FOLDER, record["settings"], record["command"], record_name=RECORD)
    if run.start() is None:
        learner = LayerLearner(config, student, layers, examples, lambda: student.save(run.folder))
        run.finish({"history": loop.train(run, learner, learner.schedule())})
    load_weights(run.folder, student)
