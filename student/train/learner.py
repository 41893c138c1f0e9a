"""A step of a student of a task: its rows, their loss, one move of Adam."""

from collections.abc import Callable

import numpy as np
import torch

from pipeline import console
from pipeline.arrays import Ints
from pipeline.device import to_device
from pipeline.tasks.target import Target
from pipeline.training.loop import Learner, Schedule
from pipeline.training.run_record import Metrics
from pipeline.training.steps import EpochBatches
from student.config import HeadKind, TrainConfig
from student.data import Examples, gold_tensor
from student.evaluate import score_student
from student.model.encoders import ENCODERS
from student.model.heads import HEADS
from student.model.model import Student
from student.model.products import IS_COMPILED
from student.train.class_weights import balanced_weights
from student.train.losses import distillation_loss, labels_loss, score_loss
from student.train.optimizer import RowAdam


class StudentLearner(Learner):
    """A student and the rows that it is trained and scored on.

    Args:
        config: the settings.
        student: is trained in place.
        splits: ``train``, and dev splits.
        keep: writes the student's weights.
    """

    def __init__(
        self, config: TrainConfig, student: Student, splits: dict[str, Examples], keep: Callable[[], None]
    ) -> None:
        tables = (table.weight for table in student.encoder.trained_tables())
        others = (*student.encoder.other_parameters(), *student.head.parameters())
        self.model = student
        self.optimizer: RowAdam = RowAdam(tables, others, lr=peak_rate(config), padding_idx=student.config.pad_id)
        if student.device.type == "cpu" and not IS_COMPILED:
            console.note("the compiled kernels were not built at installation: every step takes several times longer")
        self._config, self._keep = config, keep
        self._train = splits["train"]
        self._dev = {split: examples for split, examples in splits.items() if split != "train"}
        self._batches = make_batches(config, student.config.head, self._train.lengths)
        self._gold_N = gold_tensor(student.config.target, self._train)
        self._teacher_NC = torch.from_numpy(self._train.teacher_NC)
        weight_N = self._train.weight_N
        if config.class_weights == "balanced":
            weight_N = weight_N * balanced_weights(self._train)
        self._weight_N = torch.from_numpy(weight_N)

    def schedule(self) -> Schedule:
        """An entry, and a checkpoint, for each epoch."""
        steps = self._batches.steps_per_epoch
        return Schedule(
            total_steps=steps * self._config.num_train_epochs,
            entry_steps=steps,
            unit="epoch",
            seed=self._config.seed,
            warmup_steps=self._config.warmup_steps,
            patience=self._config.early_stopping_patience,
        )

    def train_step(self, step: int) -> tuple[torch.Tensor, int]:
        """Takes one step; returns its mean loss and number of rows."""
        student, optimizer, device = self.model, self.optimizer, self.model.device
        rows = self._batches.at(step)
        ids_T, starts_S = student.drop_tokens(*(to_device(part, device) for part in self._train.batch(rows)))
        used = optimizer.use(ids_T) if optimizer.by_rows else None
        logits_BC = student.logits(ids_T, starts_S, used)
        stored = (self._teacher_NC, self._gold_N, self._weight_N)
        teacher_BC, gold_B, weight_B = (to_device(part[rows], device) for part in stored)
        loss = _loss(self._config, student.config.target, logits_BC, teacher_BC, gold_B, weight_B)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.clip_gradients(self._config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss, len(rows)

    def evaluate(self) -> Metrics:
        """The task's metrics on each dev split."""
        return {split: score_student(self.model, examples) for split, examples in self._dev.items()}

    def keep(self) -> None:
        """Writes the student's weights."""
        self._keep()

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them."""
        self.optimizer.catch_up()


def peak_rate(config: TrainConfig) -> float:
    """The learning rate that was given, or the encoder's own."""
    return config.learning_rate or ENCODERS[config.embedding].learning_rate


def make_batches(config: TrainConfig, head: HeadKind, lengths_N: Ints) -> EpochBatches:
    """The row numbers of each step, of like length where the head can be trained on such batches."""
    sorted_by_N = lengths_N if HEADS[head].sorted_batches else np.zeros_like(lengths_N)
    return EpochBatches(sorted_by_N, config.per_device_train_batch_size, config.seed)


def _loss(
    config: TrainConfig,
    target: Target,
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_B: torch.Tensor,
    weight_B: torch.Tensor,
) -> torch.Tensor:
    """The mean loss of a batch, a scalar."""
    if target.kind == "score":
        return score_loss(logits_BC, teacher_BC, gold_B, config.alpha, weight_B)
    soft = (config.temperature, config.soft_loss)
    loss = labels_loss if target.kind == "labels" else distillation_loss
    return loss(logits_BC, teacher_BC, gold_B, config.alpha, *soft, weight_B)
