"""What a student of a task learns from a set of examples: batches, loss, scores; and the optimizer of students."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.devices import to_device
from pipeline.training.joint import BatchedTask
from pipeline.training.loop import TrainOptimizer
from pipeline.training.run_record import Metrics
from student.config import TrainConfig
from student.data import Examples, gold_tensor, make_batches, row_weights
from student.evaluate import score_student
from student.losses.layers import LayerLoss
from student.losses.logits import task_loss
from student.model.model import Student
from student.optimizer import rows_of_batch


class ExampleTask(BatchedTask):
    """A student of a task and the rows that it is trained and scored on.

    Args:
        config: the settings.
        student: is trained in place.
        splits: ``train``, and dev splits.
        optimizer: takes the gradients of the rows of tables that a batch uses. (default: whole tables have gradients)
        layers: what its layers learn from beside the logits.
        write: writes the student to a folder.
    """

    def __init__(
        self,
        config: TrainConfig,
        student: Student,
        splits: dict[str, Examples],
        optimizer: TrainOptimizer | None = None,
        layers: LayerLoss | None = None,
        write: Callable[[Path], None] | None = None,
    ) -> None:
        self.model = student if layers is None else nn.ModuleList([student, layers])
        self._student, self._layers, self._config = student, layers, config
        self._optimizer, self._write = optimizer, write or student.save
        self._train = splits["train"]
        self._dev = {split: examples for split, examples in splits.items() if split != "train"}
        self.batches = make_batches(
            student.config.head, self._train.lengths, config.per_device_train_batch_size, config.seed
        )
        self._gold_N = gold_tensor(student.config.target, self._train)
        self._teacher_NC = torch.from_numpy(self._train.teacher_NC)
        self._weight_N = torch.from_numpy(row_weights(config, self._train))

    def loss(self, rows: list[int]) -> torch.Tensor:
        """The mean loss of training rows, a scalar."""
        student, device = self._student, self._student.device
        ids_T, starts_S = student.drop_tokens(*(to_device(part, device) for part in self._train.batch(rows)))
        logits_BC, layer_loss = self._read(ids_T, starts_S, rows)
        stored = (self._teacher_NC, self._gold_N, self._weight_N)
        teacher_BC, gold_B, weight_B = (to_device(part[rows], device) for part in stored)
        soft = (self._config.temperature, self._config.soft_loss)
        loss = task_loss(student.config.target, logits_BC, teacher_BC, gold_B, self._config.alpha, *soft, weight_B)
        return layer_loss + loss

    def _read(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """The student's logits, and the weighted loss of its layers."""
        used = rows_of_batch(self._optimizer, self._student.encoder, ids_T, starts_S)
        if self._layers is None:
            return self._student.logits(ids_T, starts_S, used), 0.0
        features_BF, told = self._layers.read(self._student, ids_T, starts_S, used)
        loss = self._layers(features_BF, told, starts_S, np.asarray(rows))
        return self._student.head(self._student.dropout(features_BF)), (self._config.objective_weight or 1.0) * loss

    def evaluate(self) -> Metrics:
        """The task's metrics on each dev split."""
        return {split: score_student(self._student, examples) for split, examples in self._dev.items()}

    def save(self, folder: Path) -> None:
        """Writes the student."""
        self._write(folder)
