"""The first of two stages: a student's layers alone, before its answers (How to Distill your BERT, section 3).

The second stage starts from what this one has written, with a learning rate and an optimizer of its own.
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.device import to_device
from pipeline.training.loop import Schedule, TrainOptimizer, TrainTask, fit
from pipeline.training.run import Run
from pipeline.training.run_record import Entry, Metrics, read_run_record
from student.config import TrainConfig
from student.data import Examples
from student.model.model import Student
from student.model.weights import load_weights
from student.train.layer_loss import LayerLoss
from student.train.learner import make_batches, make_optimizer, rows_of_batch

FOLDER, RECORD = "intermediate", "stage.json"


class LayerTask(TrainTask[list[int]]):
    """A student whose layers are brought near its teacher's.

    Args:
        config: the settings.
        student: is trained in place, all but its head.
        layers: the loss, whose maps are trained, too.
        examples: the training rows; those that the teacher's layers are not known of are left out.
        optimizer: takes the gradients of the rows of tables that a batch uses.
    """

    def __init__(
        self,
        config: TrainConfig,
        student: Student,
        layers: LayerLoss,
        examples: Examples,
        optimizer: TrainOptimizer,
    ) -> None:
        self.model = nn.ModuleDict({"student": student, "layers": layers})
        self._student, self._layers, self._optimizer = student, layers, optimizer
        self._examples, self._known = examples, np.flatnonzero(layers.is_known_N)
        sizes = (config.per_device_train_batch_size, config.seed)
        self.batches = make_batches(student.config.head, examples.lengths[self._known], *sizes)

    def loss(self, batch: list[int]) -> torch.Tensor:
        """The mean loss of the layers, a scalar."""
        rows, device = self._known[batch], self._student.device
        ids_T, starts_S = (to_device(part, device) for part in self._examples.batch(rows))
        used = rows_of_batch(self._optimizer, self._student.encoder, ids_T, starts_S)
        return self._layers(*self._layers.read(self._student, ids_T, starts_S, used), starts_S, rows)  # type: ignore[no-any-return]

    def evaluate(self) -> Metrics:
        """Returns no scores: the head has not been trained yet."""
        return {}

    def save(self, folder: Path) -> None:
        """Writes the student's weights."""
        self._student.save(folder)


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
        rates = (config.optimizer, config.peak_learning_rate, config.max_grad_norm)
        optimizer = make_optimizer(*rates, student.encoder, layers)
        task = LayerTask(config, student, layers, examples, optimizer)
        schedule = Schedule.of_epochs(
            task.batches.steps_per_epoch,
            config.intermediate_epochs,
            config.seed,
            warmup_steps=config.warmup_steps,
            save_best=False,
        )
        run.finish({"history": fit(run, task, optimizer, schedule)})
    load_weights(run.folder, student)
