"""The tasks of fine-tuning: classifiers of texts or of words with the rows of their task, their loss and their scores.

A teacher of word labels learns the gold label of each word at the word's first token.

Shapes: B batch, L tokens, T tokens of all sentences, N rows, C logits.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.nn import functional

from pipeline.arrays import Ints, Ragged
from pipeline.errors import ConfigError, DataError, did_you_mean
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.sources import ROWS_AT_ONCE, Source, load_source, load_word_source, sentences
from pipeline.tasks.metrics import class_summary, score_logits
from pipeline.tasks.spans import word_scores
from pipeline.tasks.target import NO_LABEL, Target, gold_arrays, has_gold
from pipeline.tasks.task import TRAIN, Task
from pipeline.text.near_copies import groups_of, groups_of_values
from pipeline.text.tokenizer import ROWS as KNOWN_ROWS
from pipeline.text.tokenizer import Tokenized, require_known, require_known_ids
from pipeline.training.batches import HELD_OUT, EpochBatches, held_out_rows
from pipeline.training.best_epoch import share_to_select
from pipeline.training.joint import BatchedTask
from pipeline.training.run_record import Metrics
from teacher.finetune.common import autocast, save_teacher
from teacher.finetune_settings import StepFlags
from teacher.models.batches import collate, framed, tokens_per_batch
from teacher.models.classifier import Teacher, labelled_words, pieces_of, teacher_logits

Forward = Callable[..., torch.Tensor]


class ClassifierTask(BatchedTask):
    """A classifier, which is trained in place, with the rows of ``train`` and of dev splits.

    ``forward`` returns logits of the classifier for its inputs as keywords, in all processes.

    Raises:
        DataError: if no training row has gold, or the teacher's tokenizer lacks the words.
    """

    def __init__(
        self,
        steps: StepFlags,
        task: Task,
        teacher: Teacher,
        rows: dict[str, pa.Table],
        accelerator: Accelerator,
        forward: Forward,
    ) -> None:
        self.model, self._teacher, self._task, self._forward = teacher.model, teacher, task, forward
        self._max_seq_length, self._accelerator, self._rows = steps.max_seq_length, accelerator, rows
        processes = (accelerator.num_processes, accelerator.process_index)
        lengths = self._training_lengths()
        self.batches = EpochBatches(lengths, steps.per_device_train_batch_size, steps.seed, *processes)

    @abstractmethod
    def _training_lengths(self) -> Ints:
        """Prepares the training rows with gold, and returns their tokens."""

    @abstractmethod
    def _score(self, split: str) -> dict[str, float]:
        """Returns metrics on a dev split in fp32, like those of a dump."""

    def _logits(self, inputs: list[Tokenized]) -> torch.Tensor:
        with autocast(self._accelerator.device):
            return self._forward(**collate(self._teacher, inputs)).float()

    def evaluate(self) -> Metrics:
        """Returns the task's metrics on each dev split."""
        return {split: self._score(split) for split in self._rows if split != "train"}

    def save(self, folder: Path) -> None:
        save_teacher(self._teacher.model, self._teacher.name, self._teacher.revision, folder)


class ExampleTask(ClassifierTask):
    """A classifier of texts. Only a batch exists as tokens, which take far more memory than texts."""

    def _training_lengths(self) -> Ints:
        teacher, train = self._teacher, self._rows["train"]
        for split, rows in self._rows.items():
            # An encoder for another language would train without an error on only unknown tokens.
            first = self._inputs(split, range(min(KNOWN_ROWS, rows.num_rows)))
            require_known(teacher.tokenizer, first, f"model {teacher.name}")
        label_N, score_N = gold_arrays(teacher.target, train)
        self._gold_N = teacher.target.gold(label_N, score_N)
        self._with_gold = np.flatnonzero(has_gold(teacher.target, label_N, score_N))
        if not len(self._with_gold):
            raise DataError(
                f"task {self._task.name!r}: the train split has no row with gold, so there is nothing to fine-tune on"
            )
        if teacher.target.is_score:
            start_at_mean(teacher.model, float(self._gold_N[self._with_gold].mean()))
        parts = (
            range(start, min(start + ROWS_AT_ONCE, train.num_rows)) for start in range(0, train.num_rows, ROWS_AT_ONCE)
        )
        lengths_N = np.array([len(row.ids) for part in parts for row in self._inputs("train", part)], dtype=np.int64)
        return lengths_N[self._with_gold]

    def loss(self, batch: list[int]) -> torch.Tensor:
        rows = self._with_gold[batch]
        logits_BC = self._logits(self._inputs("train", rows.tolist()))
        return classifier_loss(
            self._teacher.target, logits_BC, torch.as_tensor(self._gold_N[rows], device=logits_BC.device)
        )

    def _score(self, split: str) -> dict[str, float]:
        accelerator, rows, target = self._accelerator, self._rows[split], self._teacher.target
        # Each process computes every n-th row, so that a file that is sorted by length or class is shared evenly.
        my_rows = range(accelerator.process_index, rows.num_rows, accelerator.num_processes)
        with torch.no_grad():
            max_tokens = tokens_per_batch(accelerator.device)
            logits = teacher_logits(self._teacher, self._inputs(split, my_rows), max_tokens)
        gathered = dict(gather_object(list(zip(my_rows, logits.tolist(), strict=True))))
        # Sorted by row, so that the scores do not depend on the number of processes.
        logits_NC = np.array([gathered[row] for row in range(rows.num_rows)], dtype=np.float32)
        label_N, score_N = gold_arrays(target, rows)
        counts = class_summary(target, logits_NC, label_N)
        counts.pop("macro_f1", None)  # a metric of a task by its own choice
        return score_logits(self._task.metrics, target, logits_NC, label_N, score_N) | counts

    def _inputs(self, split: str, numbers: Sequence[int]) -> list[Tokenized]:
        rows = self._rows[split].take(pa.array(numbers, pa.int64()))
        return self._teacher.reader.tokenize(*sentences(rows), self._max_seq_length)


class TokenLabelTask(ClassifierTask):
    """A classifier of words."""

    def _training_lengths(self) -> Ints:
        teacher, train = self._teacher, self._rows["train"]
        train = train.filter(train.column("label").is_valid())
        pieces = pieces_of(teacher, train, self._max_seq_length)
        no_logits_TC = np.empty((len(pieces.ids.flat), 0), dtype=np.float32)
        words = LabelledWords.of(
            self._task.labels, train.column("sentence1"), train.column("label"), pieces, no_logits_TC
        )
        # The mean loss of a batch without tokens would be NaN.
        self._ids = pieces.ids.not_empty
        self._gold = Ragged(words.gold_T, self._ids.offsets)
        if not len(self._ids):
            raise DataError(
                f"task {self._task.name!r}: no row of the train split has gold and a token, so there is nothing to "
                "fine-tune on"
            )
        require_known_ids(teacher.tokenizer, self._ids, f"model {teacher.name}")
        return self._ids.lengths

    def loss(self, batch: list[int]) -> torch.Tensor:
        """Returns the mean loss of the words of a batch, a scalar."""
        logits_BLC = self._logits(framed(self._teacher, self._ids.take(batch)))
        # Special tokens and padding keep NO_LABEL, which the loss ignores.
        gold_BL = torch.full(logits_BLC.shape[:2], NO_LABEL)
        gold, first = self._gold.padded(batch, NO_LABEL), len(self._teacher.tokens.frame[0])
        gold_BL[:, first : first + gold.shape[1]] = torch.from_numpy(gold)
        gold_BL = gold_BL.to(logits_BLC.device)
        return functional.cross_entropy(logits_BLC.flatten(0, 1), gold_BL.flatten(), ignore_index=NO_LABEL)

    def _score(self, split: str) -> dict[str, float]:
        # Every process computes all of them.
        max_tokens = tokens_per_batch(self._accelerator.device)
        with torch.no_grad():
            predicted = labelled_words(self._teacher, self._rows[split], self._max_seq_length, split, max_tokens)
        return word_scores(self._task.metrics, predicted.tallies(predicted.teacher_TC))


def start_at_mean(model: nn.Module, mean: float) -> None:
    """Sets the bias of a new head for scores to their mean, which the first epoch would otherwise spend on reaching it.

    A head that was trained before has a bias other than 0, and it stays.
    """
    heads = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    if heads and heads[-1].bias is not None and not heads[-1].bias.any():
        nn.init.constant_(heads[-1].bias, mean)


def classifier_loss(target: Target, logits_BC: torch.Tensor, gold_B: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss to gold for a target, a scalar. For a multi-label task, it is also the mean over labels."""
    if target.is_score:
        return functional.mse_loss(logits_BC[:, 0], gold_B)
    if target.has_label_lists:
        return functional.binary_cross_entropy_with_logits(logits_BC, gold_B.float())
    return functional.cross_entropy(logits_BC, gold_B)


def training_source(task: Task, data: Path | None) -> Source:
    """Returns the rows of a task.

    Raises:
        DataError: if there is no train split.
    """
    load = load_word_source if task.type == "token_labels" else load_source
    source = load(task, data)
    if "train" not in source.splits:
        raise DataError(f"task {task.name!r}: no train split in {source.description}, nothing to fine-tune on")
    return source


def hold_out(source: Source, share: float | None, group: str | None = None) -> dict[str, pa.Table]:
    """Returns the splits with a share of the training rows as the first dev split, which selects the best epoch.

    The choice of rows is fixed. Without a share, no row is held out, unless `share_to_select` returns one. Near copies
    are held out together, or rows with the same value in the kept column ``group``.

    Raises:
        ConfigError: if no such column is kept.
    """
    splits = source.splits
    if share is None:
        scored = [split for split, rows in splits.items() if split != TRAIN and _has_gold(rows)]
        share = share_to_select("", scored, splits[TRAIN].num_rows)
    if share is None:
        return splits
    train = splits["train"]
    if group is None:
        group_N = groups_of(train)
    else:
        kept = source.kept.get(TRAIN, pa.table({}))
        if group not in kept.column_names:
            known = did_you_mean(group, kept.column_names)
            raise ConfigError(f"--group {group}: the manifest keeps no such column. {known}")
        group_N = groups_of_values(kept.column(group).combine_chunks())
    held_out = held_out_rows(group_N, share)
    parts = {"train": train.take(np.delete(np.arange(train.num_rows), held_out)), HELD_OUT: train.take(held_out)}
    return parts | {name: rows for name, rows in splits.items() if name != "train"}


def _has_gold(rows: pa.Table) -> bool:
    return any(rows.column(name).null_count < rows.num_rows for name in ("label", "score"))
