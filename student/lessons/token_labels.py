"""Rows, training and scores of students of labelled words. A row is a sentence, and losses are per token.

Shapes: N sentences, T tokens of all of them end to end, C logits.
"""

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline.arrays import Bools, Floats, Ints, Ragged
from pipeline.devices import to_device
from pipeline.errors import DataError
from pipeline.sets.kinds.token_labels import LabelledWords, TokenLabelSet
from pipeline.tasks.calibration_error import calibration_scores
from pipeline.tasks.metrics import fidelity
from pipeline.tasks.spans import scores_by_span, word_intervals, word_scores
from pipeline.tasks.target import NO_LABEL
from pipeline.tasks.task import OUTSIDE, TRAIN, Metric
from pipeline.tasks.temperature import calibrated
from pipeline.text.text_to_ids import TextReader
from pipeline.text.word_pieces import Pieces, read_pieces
from pipeline.training.batches import held_out_rows
from pipeline.training.joint import BatchedTask
from pipeline.training.loop import TrainOptimizer
from pipeline.training.run_record import Metrics
from student.data import groups_to_hold_out, in_batches, make_batches
from student.initial_weights.bert import BertStart
from student.lessons.lesson import TaskLesson
from student.losses.logit_losses import task_loss
from student.model.architecture import Facts, TaskConfig, TokenLabelConfig
from student.model.build_config import build_token_label_config
from student.model.student import TokenLabelStudent
from student.row_adam import rows_of_batch
from student.settings import TrainSettings
from student.source_settings import Query, Where
from student.vocabulary_pruning import renumbered


class TokenLabelTask(BatchedTask):
    """A student and its sentences for training and scores.

    Args:
        settings: the settings of its loss and batches.
        student: the student, which is trained in place.
        splits: ``train``, and dev splits.
        optimizer: receives the gradients of the used rows of tables. Default: whole tables have gradients.
        layers: None, because the flags refuse losses of layers.
        write: writes the student to a folder.

    Raises:
        DataError: if no training sentence has a token, or none has gold and the teacher has no weight.
    """

    def __init__(
        self,
        settings: TrainSettings,
        student: TokenLabelStudent,
        splits: dict[str, LabelledWords],
        optimizer: TrainOptimizer | None = None,
        layers: None = None,
        write: Callable[[Path], None] | None = None,
    ) -> None:
        self.model, self._loss, self._optimizer, self._write = student, settings.loss, optimizer, write or student.save
        train = splits[TRAIN]
        self._ids = train.pieces.ids.not_empty  # a batch of sentences without tokens would have no mean
        if not len(self._ids):
            raise DataError("no sentence of the train split has a token, so there is nothing to train on")
        self._dev = {split: rows for split, rows in splits.items() if split != TRAIN}
        sizes = (settings.epochs.per_device_train_batch_size, settings.seed)
        self.batches = make_batches(student.config.head, self._ids.lengths, *sizes)
        gold_T = torch.from_numpy(train.gold_T)
        known_T = (gold_T != NO_LABEL).float()
        if self._loss.alpha == 1 and not known_T.any():
            raise DataError("no word of the train split has gold, but --alpha 1 learns only from gold")
        weight_T = known_T if self._loss.alpha == 1 else torch.ones_like(known_T)
        self._stored = torch.from_numpy(train.teacher_TC), gold_T, weight_T

    def loss(self, rows: list[int]) -> torch.Tensor:
        """Returns the mean loss of a batch's tokens, a scalar.

        Tokens without gold, such as all but the first of a word, learn only from the teacher, and with ``--alpha 1``
        not at all.
        """
        device = self.model.device
        places, taken = tokens_of(self._ids, rows)
        ids_T, starts_S = (to_device(torch.from_numpy(part), device) for part in (taken.flat, taken.offsets))
        teacher_TC, gold_T, weight_T = (to_device(part[places], device) for part in self._stored)
        used = rows_of_batch(self._optimizer, self.model.encoder, ids_T, starts_S)
        logits_TC = self.model(ids_T, starts_S, used)
        soft = (self._loss.soft.temperature, self._loss.soft.soft_loss)
        return task_loss(self.model.config.target, logits_TC, teacher_TC, gold_T, self._loss.alpha, *soft, weight_T)

    def evaluate(self) -> Metrics:
        metrics = self.model.config.metrics
        logits = {split: logits_of_tokens(self.model, rows.pieces.ids) for split, rows in self._dev.items()}
        return {split: word_scores(metrics, rows.tallies(logits[split])) for split, rows in self._dev.items()}

    def save(self, folder: Path) -> None:
        self._write(folder)


def evaluate_split(
    student: TokenLabelStudent,
    rows: LabelledWords,
    bias_C: Floats | None = None,
) -> dict[str, Any]:
    """Returns all results of `student.evaluate.evaluate` for one split.

    Args:
        student: the student on its device.
        rows: the sentences.
        bias_C: added to the logits before labels are chosen.
    """
    metrics, student_TC = student.config.metrics, logits_of_tokens(student, rows.pieces.ids)
    tallies, target, calibration = rows.tallies(student_TC), student.config.target, student.config.calibration
    decided = tallies if bias_C is None else rows.tallies(calibrated(student_TC, calibration) + bias_C)
    outside_TC = np.zeros_like(student_TC)
    outside_TC[:, rows.names.index(OUTSIDE)] = 1
    num_scored = int(rows.has_gold_N.sum())
    # Words are labelled by their first tokens, and compared with the teacher by them.
    first_W = rows.pieces.by_word(np.arange(len(student_TC)), rows.num_words_N, -1).flat
    first_W = first_W[first_W >= 0]
    return {
        "rows": {"scored": num_scored, "without_gold": len(rows) - num_scored},
        "gold": word_scores(metrics, tallies),
        "interval": word_intervals(metrics, tallies),
        "teacher": word_scores(metrics, rows.tallies(rows.teacher_TC)) if len(rows.teacher_TC) else {},
        "teacher_by_label": scores_by_span(rows.names, rows.tallies(rows.teacher_TC)) if len(rows.teacher_TC) else {},
        "majority": word_scores(metrics, rows.tallies(outside_TC)),
        "glue": None,
        "labels": {},
        "decided": {} if bias_C is None else word_scores(metrics, decided),
        "by_label": scores_by_span(rows.names, decided),
        "confusion": rows.confusion(student_TC if bias_C is None else student_TC + bias_C),
        "bins": {},
        "calibration": calibration_scores(target, student_TC, rows.gold_T, np.empty(0, dtype=np.float32), calibration),
        "fidelity": fidelity(target, student_TC[first_W], rows.teacher_TC[first_W]) if len(rows.teacher_TC) else {},
    }


def logits_of_tokens(student: TokenLabelStudent, ids: Ragged) -> Floats:
    """Runs a student over sentences of ids. Returns float32 logits [T, C]."""
    student.eval()
    width, device = student.config.target.num_logits, student.device
    return in_batches(student, [ids], width, device, of_tokens=True, is_sorted=True)


class TokenLabelLesson(TaskLesson[TokenLabelSet, LabelledWords, TokenLabelStudent]):
    """Sentences of labelled words."""

    student, set_type, task = TokenLabelStudent, TokenLabelSet, TokenLabelTask

    def build_config(
        self, settings: TrainSettings, logit_set: TokenLabelSet, facts: Facts
    ) -> tuple[TokenLabelConfig, BertStart | None]:
        """Returns the architecture, without layers, because no bert labels words."""
        return build_token_label_config(settings, facts), None

    def read(self, logit_set: TokenLabelSet, split: str, chosen: Where | Query | None = None) -> LabelledWords:
        return logit_set.read(split)

    def of_source(self, rows: pa.Table, reader: TextReader, config: TokenLabelConfig) -> LabelledWords:
        words, target = rows.column("sentence1"), config.target
        pieces = read_pieces(reader, words.to_pylist())
        no_teacher = np.empty((0, target.num_logits), dtype=np.float32)
        return LabelledWords.of(target.names, words, rows.column("label"), pieces, no_teacher)

    def read_first(self, logit_set: TokenLabelSet, split: str, number: int) -> LabelledWords:
        rows = logit_set.read(split)
        return _taken(rows, np.arange(len(rows)) < number)

    def row_hashes(self, logit_set: TokenLabelSet, rows: LabelledWords) -> dict[str, str]:
        logits = np.ascontiguousarray(rows.teacher_TC).tobytes()
        return {
            "rows_sha256": logit_set.record.splits[TRAIN].rows_sha256 or "",
            "logits_sha256": hashlib.sha256(logits).hexdigest(),
        }

    def is_scored(self, rows: LabelledWords, config: TaskConfig) -> Bools:
        return rows.has_gold_N

    def with_groups(self, logit_set: TokenLabelSet, rows: LabelledWords, column: str | None) -> LabelledWords:
        shards = (part for shard in logit_set.shards(TRAIN) for part in logit_set.read_shard(shard))
        inputs = pa.concat_tables(part.select(["source_row", "words"]) for part in shards)
        inputs = inputs.rename_columns(["source_row", "sentence1"]).filter(pa.array(rows.has_gold_N))
        group_N = np.zeros(len(rows), dtype=np.int64)
        group_N[rows.has_gold_N] = groups_to_hold_out(logit_set.root, inputs, column)
        return replace(rows, group_N=group_N)

    def hold_out(self, rows: LabelledWords, config: TaskConfig, share: float) -> tuple[LabelledWords, LabelledWords]:
        scored = np.flatnonzero(rows.has_gold_N)
        group_N = scored if rows.group_N is None else rows.group_N[scored]
        is_held_N = np.isin(np.arange(len(rows)), scored[held_out_rows(group_N, share)])
        return _taken(rows, ~is_held_N), _taken(rows, is_held_N)

    def renumber(self, rows: LabelledWords, active: Ints) -> LabelledWords:
        return replace(rows, pieces=Pieces(renumbered(rows.pieces.ids, active), rows.pieces.word_ids))

    def num_without_gold(self, rows: LabelledWords, config: TaskConfig) -> int:
        """Returns 0: with --alpha 1, tokens without gold have no weight."""
        return 0

    def student_logits(self, student: TokenLabelStudent, rows: LabelledWords) -> Floats:
        return logits_of_tokens(student, rows.pieces.ids)

    def gold(self, rows: LabelledWords) -> tuple[Ints, Floats]:
        """Returns the gold, where the first token of a word has that of its word."""
        return rows.gold_T, np.empty(0, dtype=np.float32)

    def evaluate_split(
        self,
        student: TokenLabelStudent,
        rows: LabelledWords,
        bias_C: Floats | None = None,
        own: Collection[Metric] | None = None,
    ) -> dict[str, Any]:
        return evaluate_split(student, rows, bias_C)


def tokens_of(ids: Ragged, rows: Any) -> tuple[np.ndarray, Ragged]:
    """Returns the positions of some sentences' tokens among all tokens, and these sentences."""
    taken = ids.take(rows)
    return Ragged(np.arange(len(ids.flat)), ids.offsets).take(rows).flat, taken


def _taken(rows: LabelledWords, is_taken_N: Bools) -> LabelledWords:
    chosen = np.flatnonzero(is_taken_N)
    places, ids = tokens_of(rows.pieces.ids, chosen)
    return replace(
        rows,
        pieces=Pieces(ids, rows.pieces.word_ids.take(chosen)),
        num_words_N=rows.num_words_N[chosen],
        gold=rows.gold.take(chosen),
        has_gold_N=rows.has_gold_N[chosen],
        teacher_TC=rows.teacher_TC[places],
        group_N=None if rows.group_N is None else rows.group_N[chosen],
    )
