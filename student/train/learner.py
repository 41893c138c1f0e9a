"""What a student of a task learns from a set of examples: batches, loss, scores; and the optimizer of students."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pipeline.arrays import Ints
from pipeline.device import to_device
from pipeline.training.batches import EpochBatches
from pipeline.training.joint import BatchedTask
from pipeline.training.loop import TrainOptimizer
from pipeline.training.run_record import Metrics
from student.config import HeadKind, OptimizerKind, TrainConfig
from student.data import Examples, gold_tensor
from student.evaluate import score_student
from student.model.encoder import Encoder
from student.model.heads import HEADS
from student.model.model import Student
from student.train.class_weights import row_weights
from student.train.layer_loss import LayerLoss
from student.train.losses import task_loss
from student.train.optimizer import RowAdam
from student.train.table_rows import UsedRows

RHO = 0.95  # of AdaDelta, by which Tang et al. (2019) trained their students


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


class RowOptimizer(TrainOptimizer):
    """Moves the rows of tables that a batch uses, and other parameters; see `RowAdam`."""

    inner: RowAdam

    @property
    def by_rows(self) -> bool:
        """Whether rows have gradients of their own."""
        return self.inner.by_rows

    def clip(self, max_norm: float) -> None:
        """Scales all gradients so that their norm is at most this."""
        self.inner.clip_gradients(max_norm)

    def catch_up(self) -> None:
        """Moves the rows that the last batches did not use to where dense Adam has them."""
        self.inner.catch_up()


def make_optimizer(
    kind: OptimizerKind, learning_rate: float, max_grad_norm: float, encoder: Encoder, *parts: nn.Module
) -> TrainOptimizer:
    """What moves an encoder's tables, by rows if it is Adam, and all its other numbers and those of the parts."""
    tables = [table.weight for table in encoder.trained_tables()]
    others = [*encoder.other_parameters(), *(parameter for part in parts for parameter in part.parameters())]
    others = [parameter for parameter in others if parameter.requires_grad]
    table = encoder.bigram_table()
    bigrams = None if table is None else table.weight
    if kind == "adadelta":
        parameters = [*tables, *others, *([] if bigrams is None else [bigrams])]
        return TrainOptimizer(torch.optim.Adadelta(parameters, lr=learning_rate, rho=RHO), max_grad_norm)
    adam = RowAdam(tables, others, lr=learning_rate, padding_idx=encoder.pad_id, bigrams=bigrams)
    return RowOptimizer(adam, max_grad_norm)


def rows_of_batch(
    optimizer: TrainOptimizer | None, encoder: Encoder, ids_T: torch.Tensor, starts_S: torch.Tensor | None = None
) -> UsedRows | None:
    """What takes the gradients of the rows of tables that a batch uses; None if whole tables have gradients."""
    if not isinstance(optimizer, RowOptimizer) or not optimizer.by_rows:
        return None
    return optimizer.inner.use(ids_T, None if starts_S is None else encoder.bigram_rows(ids_T, starts_S))


def make_batches(head: HeadKind, lengths_N: Ints, batch_size: int, seed: int) -> EpochBatches:
    """The row numbers of each step, of like length where the head can be trained on such batches."""
    sorted_by_N = lengths_N if HEADS[head].sorted_batches else np.zeros_like(lengths_N)
    return EpochBatches(sorted_by_N, batch_size, seed)
