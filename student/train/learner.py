"""A step of a student of a task, or of one of several that share an encoder: rows, their loss, one move."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import nn

from pipeline import console
from pipeline.arrays import Ints
from pipeline.device import to_device
from pipeline.training.loop import Learner, Schedule
from pipeline.training.run_record import Metrics
from pipeline.training.steps import EpochBatches, MixedBatches
from student.config import HeadKind, TrainConfig
from student.data import Examples, gold_tensor
from student.evaluate import score_student
from student.model.encoder import Encoder
from student.model.headed import Headed
from student.model.heads import HEADS
from student.model.model import Student
from student.model.products import IS_COMPILED
from student.train.adadelta import AdaDelta
from student.train.class_weights import row_weights
from student.train.layer_loss import LayerLoss
from student.train.losses import task_loss
from student.train.optimizer import RowAdam
from student.train.table_rows import UsedRows

Optimizer = RowAdam | AdaDelta


class Lesson:
    """A student of a task and the rows that it is trained and scored on.

    Args:
        config: the settings.
        student: is trained in place.
        splits: ``train``, and dev splits.
        layers: what its layers learn by beside the logits.

    Attributes:
        student: the student.
        layers: as given.
        batches: of the training rows.
    """

    def __init__(
        self, config: TrainConfig, student: Student, splits: dict[str, Examples], layers: LayerLoss | None = None
    ) -> None:
        self.student, self.layers, self._config = student, layers, config
        self._train = splits["train"]
        self._dev = {split: examples for split, examples in splits.items() if split != "train"}
        self.batches = make_batches(config, student.config.head, self._train.lengths)
        self._gold_N = gold_tensor(student.config.target, self._train)
        self._teacher_NC = torch.from_numpy(self._train.teacher_NC)
        self._weight_N = torch.from_numpy(row_weights(config, self._train))

    def loss(self, rows: Sequence[int], optimizer: Optimizer) -> torch.Tensor:
        """The mean loss of training rows, a scalar, whose gradients of tables the optimizer will take."""
        student, device = self.student, self.student.device
        ids_T, starts_S = student.drop_tokens(*(to_device(part, device) for part in self._train.batch(rows)))
        logits_BC, layer_loss = self._read(ids_T, starts_S, rows, optimizer)
        stored = (self._teacher_NC, self._gold_N, self._weight_N)
        teacher_BC, gold_B, weight_B = (to_device(part[rows], device) for part in stored)
        soft = (self._config.temperature, self._config.soft_loss)
        loss = task_loss(student.config.target, logits_BC, teacher_BC, gold_B, self._config.alpha, *soft, weight_B)
        return layer_loss + loss

    def _read(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: Sequence[int], optimizer: Optimizer
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The student's logits, and the weighted loss of its layers."""
        used = rows_of_batch(optimizer, self.student.encoder, ids_T, starts_S)
        if self.layers is None:
            return self.student.logits(ids_T, starts_S, used), 0.0
        features_BF, told = self.layers.read(self.student, ids_T, starts_S, used)
        loss = self.layers(features_BF, told, starts_S, np.asarray(rows))
        return self.student.head(self.student.dropout(features_BF)), (self._config.objective_weight or 1.0) * loss

    def scores(self) -> Metrics:
        """The task's metrics on each dev split."""
        return {split: score_student(self.student, examples) for split, examples in self._dev.items()}


class AnyLesson(Protocol):
    """What a student learns, of whole texts or of words."""

    @property
    def student(self) -> Headed:
        """What is trained."""
        ...

    @property
    def layers(self) -> LayerLoss | None:
        """What its layers learn by beside the logits."""
        ...

    @property
    def batches(self) -> EpochBatches:
        """The row numbers of each step."""
        ...

    def loss(self, rows: Sequence[int], optimizer: Optimizer) -> torch.Tensor:
        """The mean loss of training rows, a scalar, whose gradients of tables the optimizer will take."""
        ...


class StudentLearner(Learner):
    """A student, or several that share their encoder; a step is a batch of one of them, the others' heads stay.

    Args:
        config: the settings.
        lessons: what each learns.
        score: tells their metrics.
        keep: writes their weights.
    """

    def __init__(
        self,
        config: TrainConfig,
        lessons: Sequence[AnyLesson],
        score: Callable[[], Metrics],
        keep: Callable[[], None],
    ) -> None:
        students = [lesson.student for lesson in lessons]
        first, layers = students[0], [lesson.layers for lesson in lessons if lesson.layers is not None]
        parts = [*students, *layers]
        self.model = first if len(parts) == 1 else nn.ModuleList(parts)
        self.optimizer = make_optimizer(config, first.encoder, *(student.head for student in students), *layers)
        if first.device.type == "cpu" and not IS_COMPILED:
            console.note("the compiled kernels were not built at installation: every step takes several times longer")
        self._config, self._lessons, self._score, self._keep = config, lessons, score, keep
        self._batches = MixedBatches([lesson.batches for lesson in lessons], config.seed)

    def schedule(self) -> Schedule:
        """An entry, and a checkpoint, for each epoch."""
        steps, epochs = self._batches.steps_per_epoch, self._config.num_train_epochs
        assert epochs is not None, "the number of rows has decided it"
        return Schedule(
            total_steps=steps * epochs,
            entry_steps=steps,
            unit="epoch",
            seed=self._config.seed,
            warmup_steps=self._config.warmup_steps,
            patience=self._config.early_stopping_patience,
        )

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns its mean loss and number of rows."""
        number, rows = self._batches.at(step)
        loss = self._lessons[number].loss(rows, self.optimizer)
        take_step(self.optimizer, loss, self._config.max_grad_norm)
        return loss, len(rows)

    def evaluate(self) -> Metrics:
        """The metrics on each dev split."""
        return self._score()

    def keep(self) -> None:
        """Writes the weights."""
        self._keep()

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them."""
        self.optimizer.catch_up()


def make_optimizer(config: TrainConfig, encoder: Encoder, *parts: nn.Module) -> Optimizer:
    """What moves an encoder's tables, by rows if it is Adam, and all its other numbers and those of the parts."""
    tables = [table.weight for table in encoder.trained_tables()]
    others = [*encoder.other_parameters(), *(parameter for part in parts for parameter in part.parameters())]
    others = [parameter for parameter in others if parameter.requires_grad]
    table = encoder.bigram_table()
    bigrams = None if table is None else table.weight
    if config.optimizer == "adadelta":
        return AdaDelta([*tables, *others, *([] if bigrams is None else [bigrams])], lr=config.peak_learning_rate)
    return RowAdam(tables, others, lr=config.peak_learning_rate, padding_idx=encoder.pad_id, bigrams=bigrams)


def rows_of_batch(
    optimizer: Optimizer, encoder: Encoder, ids_T: torch.Tensor, starts_S: torch.Tensor
) -> UsedRows | None:
    """Who takes the gradients of a batch's rows of tables; None if those of whole tables are made."""
    if not isinstance(optimizer, RowAdam) or not optimizer.by_rows:
        return None
    return optimizer.use(ids_T, encoder.bigram_rows(ids_T, starts_S))


def take_step(optimizer: Optimizer, loss: torch.Tensor, max_grad_norm: float) -> None:
    """Moves what an optimizer is of, down the gradient of a loss."""
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.clip_gradients(max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()


def make_batches(config: TrainConfig, head: HeadKind, lengths_N: Ints) -> EpochBatches:
    """The row numbers of each step, of like length where the head can be trained on such batches."""
    sorted_by_N = lengths_N if HEADS[head].sorted_batches else np.zeros_like(lengths_N)
    return EpochBatches(sorted_by_N, config.per_device_train_batch_size, config.seed)
