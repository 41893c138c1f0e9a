"""The toy kind of rows in stage two: a student reads each sentence and its span, and predicts if it is an answer.

Shapes: N sentences, T tokens of sentences and spans end to end, S = 2 N + 1 starts, F features, C logits.
"""

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from pipeline.arrays import Bools, Floats, Ints, stacked
from pipeline.tasks.metrics import bootstrap_intervals, fidelity, majority_scores
from pipeline.tasks.task import TRAIN, Metric
from pipeline.training.batches import held_out_rows
from pipeline.training.joint import BatchedTask
from pipeline.training.loop import TrainOptimizer
from pipeline.training.run_record import Metrics
from student.data import make_batches
from student.encoders.products import SparseGrads
from student.initial_weights.bert import BertStart
from student.lessons.lesson import TaskLesson
from student.losses.layer_losses import LayerLoss
from student.losses.logit_losses import task_loss
from student.model.architecture import Facts, StudentConfig, TaskConfig
from student.model.build_config import build_config
from student.model.config_file import read_encoder_config
from student.model.student import TaskStudent
from student.row_adam import rows_of_batch
from student.settings import TrainSettings
from student.vocabulary_pruning import renumbered
from tests.helpers.toy_kind import Spans, SpanSet


class SpanConfig(StudentConfig):
    """Architecture of a student of spans."""

    rows: ClassVar[str] = "spans"
    not_for_texts: ClassVar[str] = "a student of spans"
    kind: Literal["spans"] = "spans"


class SpanStudent(TaskStudent):
    """A head on the representations of a sentence and of its span, side by side."""

    read_config = staticmethod(read_encoder_config)

    @property
    def num_features(self) -> int:
        return 2 * self.encoder.size

    def forward(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns logits_NC of sentences, after which their spans stand, all end to end."""
        features_NF = torch.cat(self.encoder.reduce(ids_T, starts_S, sparse_grads).chunk(2), dim=1)
        logits_NC: torch.Tensor = self.head(self.dropout(features_NF))
        return logits_NC


class SpanTask(BatchedTask):
    """A student of spans and the rows that it is trained and scored on."""

    def __init__(
        self,
        settings: TrainSettings,
        student: SpanStudent,
        splits: dict[str, Spans],
        optimizer: TrainOptimizer | None,
        layers: LayerLoss | None,
        write: Callable[[Path], None],
    ) -> None:
        self.model, self._splits, self._optimizer, self._write = student, splits, optimizer, write
        self._alpha = settings.loss.alpha
        sizes = (settings.epochs.per_device_train_batch_size, settings.seed)
        self.batches = make_batches(student.config.head, splits[TRAIN].ids.lengths, *sizes)

    def loss(self, batch: list[int]) -> torch.Tensor:
        rows = self._splits[TRAIN].take(batch)
        ids_T, starts_S = span_inputs(rows)
        used = rows_of_batch(self._optimizer, self.model.encoder, ids_T, starts_S)
        gold_N, teacher_NC = torch.from_numpy(rows.label_N), torch.from_numpy(rows.teacher_NC)
        return task_loss(self.model.config.target, self.model(ids_T, starts_S, used), teacher_NC, gold_N, self._alpha)

    def evaluate(self) -> Metrics:
        dev = {split: rows for split, rows in self._splits.items() if split != TRAIN}
        kind = SpanKind()
        return {s: {"accuracy": rows.accuracy(kind.student_logits(self.model, rows))} for s, rows in dev.items()}

    def save(self, folder: Path) -> None:
        self._write(folder)


class SpanKind(TaskLesson[SpanSet, Spans, SpanStudent]):
    """Spans of sentences."""

    student, set_type, task = SpanStudent, SpanSet, SpanTask

    def build_config(
        self, settings: TrainSettings, logit_set: SpanSet, facts: Facts
    ) -> tuple[SpanConfig, BertStart | None]:
        config = build_config(settings, facts | {"is_pair": False, "special_ids": None})
        return SpanConfig.model_validate(config.model_dump()), None

    def read(self, logit_set: SpanSet, split: str, chosen: object = None) -> Spans:
        return logit_set.read(split)

    def read_first(self, logit_set: SpanSet, split: str, number: int) -> Spans:
        rows = logit_set.read(split)
        return rows.take(np.arange(min(number, len(rows))))

    def row_hashes(self, logit_set: SpanSet, rows: Spans) -> dict[str, str]:
        return {
            "rows_sha256": logit_set.record.splits[TRAIN].rows_sha256 or "",
            "logits_sha256": hashlib.sha256(rows.teacher_NC.tobytes()).hexdigest(),
        }

    def is_scored(self, rows: Spans, config: TaskConfig) -> Bools:
        return np.full(len(rows), True)

    def gold(self, rows: Spans) -> tuple[Ints, Floats]:
        return rows.label_N, np.full(len(rows), np.nan, dtype=np.float32)

    def hold_out(self, rows: Spans, config: TaskConfig, share: float) -> tuple[Spans, Spans]:
        held = held_out_rows(np.arange(len(rows)), share)
        return rows.take(np.setdiff1d(np.arange(len(rows)), held)), rows.take(held)

    def renumber(self, rows: Spans, active: Ints) -> Spans:
        return Spans(renumbered(rows.ids, active), renumbered(rows.inside, active), rows.label_N, rows.teacher_NC)

    def num_without_gold(self, rows: Spans, config: TaskConfig) -> int:
        return 0

    def student_logits(self, student: SpanStudent, rows: Spans) -> Floats:
        student.eval()
        with torch.inference_mode():
            logits_NC: Floats = student(*span_inputs(rows)).numpy()
        return logits_NC

    def evaluate_split(
        self,
        student: SpanStudent,
        rows: Spans,
        bias_C: Floats | None = None,
        own: Collection[Metric] | None = None,
    ) -> dict[str, Any]:
        config, logits_NC = student.config, self.student_logits(student, rows)
        gold = (rows.label_N, np.full(len(rows), np.nan, dtype=np.float32))
        return {
            "gold": {"accuracy": rows.accuracy(logits_NC)},
            "interval": bootstrap_intervals(config.metrics, config.target, logits_NC, *gold),
            "teacher": {"accuracy": rows.accuracy(rows.teacher_NC)},
            "majority": majority_scores(config.metrics, config.target, *gold),
            "glue": None,
            "bins": {},
            "fidelity": fidelity(config.target, logits_NC, rows.teacher_NC),
        }


def span_inputs(rows: Spans) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids of sentences, and then of their spans, end to end, and where each starts."""
    both = stacked(rows.sequences)
    return torch.from_numpy(both.flat), torch.from_numpy(both.offsets)
