"""Rows, training and scores of students of whole inputs. Shapes: N rows, B batch, C logits."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from torch import nn

from pipeline.arrays import Bools, Floats, Ints
from pipeline.devices import to_device
from pipeline.errors import FingerprintMismatchError
from pipeline.query.mixture import open_sets
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sources import sentences
from pipeline.tasks.calibration_error import calibration_scores
from pipeline.tasks.metrics import (
    bin_scores,
    bootstrap_intervals,
    class_summary,
    confusion_of_labels,
    fidelity,
    glue_score,
    majority_scores,
    score_logits,
    scores_by_label,
)
from pipeline.tasks.target import NO_LABEL, gold_arrays, has_gold
from pipeline.tasks.task import TRAIN, Metric
from pipeline.tasks.temperature import calibrated
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import frame_ids, special_ids
from pipeline.training.joint import BatchedTask
from pipeline.training.loop import TrainOptimizer
from pipeline.training.run_record import Metrics
from student.data import (
    Examples,
    as_read,
    gold_tensor,
    hold_out,
    in_batches,
    is_scored,
    load_chosen,
    load_dev,
    load_examples,
    make_batches,
    row_weights,
    with_groups,
)
from student.initial_weights.bert import BertStart, bert_start
from student.layer_stage import check_layers
from student.lessons.lesson import TaskLesson
from student.losses.layer_losses import LayerLoss
from student.losses.logit_losses import task_loss
from student.model.architecture import Facts, StudentConfig, TaskConfig
from student.model.build_config import build_config
from student.model.student import Student
from student.row_adam import rows_of_batch
from student.settings import TrainSettings
from student.source_settings import Query, Where
from student.vocabulary_pruning import renumber


class ExampleTask(BatchedTask):
    """A student of a task with its rows for training and scores.

    Args:
        settings: the settings of its loss and batches.
        student: the student, which is trained in place.
        splits: ``train``, and dev splits.
        optimizer: receives the gradients of the used rows of tables. Default: whole tables have gradients.
        layers: the loss of its layers, in addition to the logits.
        write: writes the student to a folder.
    """

    def __init__(
        self,
        settings: TrainSettings,
        student: Student,
        splits: dict[str, Examples],
        optimizer: TrainOptimizer | None = None,
        layers: LayerLoss | None = None,
        write: Callable[[Path], None] | None = None,
    ) -> None:
        self.model = student if layers is None else nn.ModuleList([student, layers])
        self._student, self._layers, self._loss = student, layers, settings.loss
        self._layer_weight = settings.layers.layer_loss_weight if settings.layers else None
        self._optimizer, self._write = optimizer, write or student.save
        self._train = splits["train"]
        self._dev = {split: examples for split, examples in splits.items() if split != "train"}
        sizes = (settings.epochs.per_device_train_batch_size, settings.seed)
        self.batches = make_batches(student.config.head, self._train.lengths, *sizes)
        self._gold_N = gold_tensor(student.config.target, self._train)
        self._teacher_NC = torch.from_numpy(self._train.teacher_NC)
        self._weight_N = torch.from_numpy(row_weights(self._loss.class_weights, self._train))

    def loss(self, rows: list[int]) -> torch.Tensor:
        """Returns the mean loss of training rows, a scalar."""
        student, device = self._student, self._student.device
        ids_T, starts_S = student.drop_tokens(*(to_device(part, device) for part in self._train.batch(rows)))
        logits_BC, layer_loss = self._read(ids_T, starts_S, rows)
        stored = (self._teacher_NC, self._gold_N, self._weight_N)
        teacher_BC, gold_B, weight_B = (to_device(part[rows], device) for part in stored)
        soft = (self._loss.soft.temperature, self._loss.soft.soft_loss)
        loss = task_loss(student.config.target, logits_BC, teacher_BC, gold_B, self._loss.alpha, *soft, weight_B)
        return layer_loss + loss

    def _read(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Returns the student's logits, and the weighted loss of its layers."""
        used = rows_of_batch(self._optimizer, self._student.encoder, ids_T, starts_S)
        if self._layers is None:
            return self._student.logits(ids_T, starts_S, used), 0.0
        features_BF, told = self._layers.read(self._student, ids_T, starts_S, used)
        loss = self._layers(features_BF, told, starts_S, np.asarray(rows))
        return self._student.head(self._student.dropout(features_BF)), (self._layer_weight or 1.0) * loss

    def evaluate(self) -> Metrics:
        return {split: score_student(self._student, examples) for split, examples in self._dev.items()}

    def save(self, folder: Path) -> None:
        self._write(folder)


def check_readable(config: StudentConfig, logit_set: ExampleSet) -> None:
    """Raises FingerprintMismatchError if the logits of a student and of a set have different meanings."""
    path, record = logit_set.root, logit_set.record
    if record.target != config.target:
        raise FingerprintMismatchError(f"{path}: its logits have another meaning than the student's")
    if record.is_pair != config.is_pair:
        raise FingerprintMismatchError(f"{path}: only one of the set and the student has pairs")


def evaluate_split(
    student: Student, rows: Examples, bias_C: Floats | None = None, own: Collection[Metric] | None = None
) -> dict[str, Any]:
    """Returns all results of `evaluate` for one split.

    Args:
        student: the student on its device.
        rows: the rows. Without a teacher, its logits have no rows.
        bias_C: added to the logits before labels are chosen.
        own: the task's metrics, without an additional one that only chose the best epoch. Default: all metrics of the
            student.
    """
    config, teacher_NC = student.config, rows.teacher_NC
    student_NC = student_logits(student, rows)
    gold = (rows.label_N, rows.score_N)
    scores = score_logits(config.metrics, config.target, student_NC, *gold)
    # Thresholds and costs are about probabilities, so they are added to calibrated logits.
    scaled_NC = calibrated(student_NC, config.calibration)
    decided_NC = scaled_NC if bias_C is None else scaled_NC + bias_C
    num_scored = int(has_gold(config.target, *gold).sum())
    return {
        "rows": {"scored": num_scored, "without_gold": len(rows) - num_scored},
        "gold": scores,
        "interval": bootstrap_intervals(config.metrics, config.target, student_NC, *gold),
        "teacher": score_logits(config.metrics, config.target, teacher_NC, *gold) if len(teacher_NC) else {},
        "teacher_by_label": (scores_by_label(config.target, teacher_NC, rows.label_N) if len(teacher_NC) else {}),
        "majority": majority_scores(config.metrics, config.target, *gold),
        "glue": glue_score({name: value for name, value in scores.items() if own is None or name in own}),
        "labels": class_summary(config.target, student_NC, rows.label_N),
        "decided": {} if bias_C is None else score_logits(config.metrics, config.target, decided_NC, *gold),
        "by_label": scores_by_label(config.target, decided_NC, rows.label_N),
        "confusion": confusion_of_labels(config.target, decided_NC, rows.label_N),
        "bins": bin_scores(config.metrics, config.target, student_NC, rows.score_N),
        "calibration": calibration_scores(config.target, student_NC, *gold, config.calibration),
        "fidelity": fidelity(config.target, student_NC, teacher_NC),
    }


def score_student(student: Student, examples: Examples) -> dict[str, float]:
    """Returns the task's metrics of a student on examples with gold, by name."""
    logits_NC = student_logits(student, examples)
    return score_logits(student.config.metrics, student.config.target, logits_NC, examples.label_N, examples.score_N)


def student_logits(student: Student, rows: Examples) -> Floats:
    """Runs a student over rows. Returns float32 logits [N, C] in their order."""
    student.eval()
    width, device = student.config.target.num_logits, student.device
    return in_batches(student.logits, rows.sequences, width, device, is_sorted=True)


class ExampleLesson(TaskLesson[ExampleSet, Examples, Student]):
    """Whole inputs: texts, or pairs of them."""

    student, set_type, task = Student, ExampleSet, ExampleTask
    open_sets, renumber = staticmethod(open_sets), staticmethod(renumber)
    as_read, check_readable = staticmethod(as_read), staticmethod(check_readable)
    student_logits, evaluate_split = staticmethod(student_logits), staticmethod(evaluate_split)

    def task_facts(self, logit_set: ExampleSet) -> Facts:
        record = logit_set.record
        tokenizer = Tokenizer.from_str(logit_set.tokenizer_json())
        if record.is_pair:
            around = special_ids(tokenizer)
        else:
            before, after = map(tuple, frame_ids(tokenizer))
            around = before, (), after
        return super().task_facts(logit_set) | {"is_pair": record.is_pair, "special_ids": around}

    def build_config(
        self, settings: TrainSettings, logit_set: ExampleSet, facts: Facts
    ) -> tuple[StudentConfig, BertStart | None]:
        layers = bert_start(settings.encoder, settings.start, logit_set)
        student_config = build_config(settings, facts, layers.inherited if layers else None)
        if settings.layers is not None:
            check_layers(settings.layers, student_config, logit_set.sets[0].record)
        return student_config, layers

    def training_query(self, chosen: Where | Query | None, logit_set: ExampleSet) -> str:
        """Returns the query, from which `load_chosen` reads the same rows again."""
        if isinstance(chosen, Query):
            return chosen.query
        return f"select * {logit_set.query('train', chosen.where if chosen else None)}"

    def read(self, logit_set: ExampleSet, split: str, chosen: Where | Query | None = None) -> Examples:
        if split != TRAIN:
            return load_dev(logit_set, split)
        if isinstance(chosen, Query):
            return load_chosen(logit_set, chosen.query)
        return load_examples(logit_set, split, chosen.where if chosen else None)

    def of_source(self, rows: pa.Table, reader: TextReader, config: StudentConfig) -> Examples:
        ids1, *others = reader.read(*sentences(rows), config.max_seq_length)
        number_N = np.arange(rows.num_rows)
        examples = Examples(
            ids1,
            others[0] if others else None,
            *gold_arrays(config.target, rows),
            np.empty((0, config.target.num_logits), dtype=np.float32),
            np.ones(rows.num_rows, dtype=np.float32),
            np.stack([number_N, np.zeros_like(number_N)], axis=1),
            "",
        )
        return as_read(examples, config)

    def read_first(self, logit_set: ExampleSet, split: str, number: int) -> Examples:
        return load_examples(logit_set, split, f"source_row < {number} and variant = 0")

    def row_hashes(self, logit_set: ExampleSet, rows: Examples) -> dict[str, str]:
        return {"rows_sha256": rows.keys_sha256, "logits_sha256": rows.logits_sha256}

    def is_scored(self, rows: Examples, config: TaskConfig) -> Bools:
        return is_scored(rows, config.target)

    def with_groups(self, logit_set: ExampleSet, rows: Examples, column: str | None) -> Examples:
        return with_groups(logit_set, rows, column)

    def hold_out(self, rows: Examples, config: TaskConfig, share: float) -> tuple[Examples, Examples]:
        return hold_out(rows, config.target, share)

    def num_without_gold(self, rows: Examples, config: TaskConfig) -> int:
        gold = gold_tensor(config.target, rows)
        is_missing = gold.isnan() if gold.is_floating_point() else gold == NO_LABEL
        return int(is_missing.reshape(len(gold), -1).any(dim=1).sum())

    def gold(self, rows: Examples) -> tuple[Ints, Floats]:
        return rows.label_N, rows.score_N
