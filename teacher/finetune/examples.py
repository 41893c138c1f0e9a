"""Fine-tunes a classifier of texts on the gold labels of its task: rows, loss and scores.

Shapes: B batch, N rows, C logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.nn import functional

from pipeline.arrays import Floats, Ints
from pipeline.errors import DataError
from pipeline.sources import ROWS_AT_ONCE, Source, load_source, load_word_source, sentences
from pipeline.tasks.metrics import class_summary, score_logits
from pipeline.tasks.target import Target, gold_arrays, has_gold
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import ROWS as KNOWN_ROWS
from pipeline.text.tokenizer import Tokenized, require_known
from pipeline.training.batches import HELD_OUT, EpochBatches, held_out_rows
from pipeline.training.joint import BatchedTask
from pipeline.training.run_record import Metrics
from teacher.finetune.common import autocast, save_teacher
from teacher.finetune_settings import StepFlags
from teacher.models.batches import collate, tokens_per_batch
from teacher.models.classifier import Teacher
from teacher.models.teacher_logits import teacher_logits

Forward = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Split:
    """Rows of a split. Only a batch exists as tokens, which take far more memory than texts.

    Attributes:
        rows: the source rows, N of them.
        lengths_N: tokens per row.
        label_N: int64 gold classes, or label_NC, with ``NO_LABEL`` for missing gold. See `gold_arrays`.
        score_N: float32 gold scores, with NaN for missing gold.
    """

    rows: pa.Table
    lengths_N: Ints
    label_N: Ints
    score_N: Floats

    def gold(self, teacher: Teacher) -> tuple[Floats | Ints, Ints]:
        """Returns training targets of every row, [N] or [N, C], and the numbers of rows with gold."""
        target, label_N, score_N = teacher.target, self.label_N, self.score_N
        gold_rows = np.flatnonzero(has_gold(target, label_N, score_N))
        return target.gold(label_N, score_N), gold_rows


class ExampleTask(BatchedTask):
    """A classifier with its rows for training and scores.

    Args:
        steps: the settings of a step.
        task: the task, with its metrics.
        teacher: the teacher, which is trained in place.
        rows: the rows of ``train`` and of dev splits.
        accelerator: this process and the others.
        forward: returns logits_BC of the classifier for its inputs as keywords, in all processes.

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
        self._max_seq_length, self._accelerator = steps.max_seq_length, accelerator
        splits = {name: _split(teacher, part, steps.max_seq_length) for name, part in rows.items()}
        self._train = splits.pop("train")
        self._dev = splits
        self._gold_N, self._rows = self._train.gold(teacher)
        if not len(self._rows):
            raise DataError(
                f"task {task.name!r}: the train split has no row with gold, so there is nothing to fine-tune on"
            )
        if teacher.target.is_score:
            start_at_mean(teacher.model, float(self._gold_N[self._rows].mean()))
        lengths, processes = self._train.lengths_N[self._rows], (accelerator.num_processes, accelerator.process_index)
        self.batches = EpochBatches(lengths, steps.per_device_train_batch_size, steps.seed, *processes)

    def loss(self, batch: list[int]) -> torch.Tensor:
        """Returns the mean loss of a batch, a scalar."""
        device, rows = self._accelerator.device, self._rows[batch]
        inputs = collate(self._teacher, self._inputs(self._train, rows.tolist()))
        gold = torch.as_tensor(self._gold_N[rows], device=device)
        with autocast(device):
            logits_BC = self._forward(**{key: value.to(device) for key, value in inputs.items()}).float()
        return classifier_loss(self._teacher.target, logits_BC, gold)

    def evaluate(self) -> Metrics:
        """Returns the task's metrics on each dev split."""
        return {name: self._score(split) for name, split in self._dev.items()}

    def save(self, folder: Path) -> None:
        """Writes the teacher."""
        save_teacher(self._teacher.model, self._teacher.name, self._teacher.revision, folder)

    def _score(self, split: Split) -> dict[str, float]:
        """Returns metrics on a dev split in fp32, like those of a dump. Each process computes every n-th row."""
        accelerator = self._accelerator
        # Every n-th row, so that a file that is sorted by length or class is shared evenly.
        my_rows = range(accelerator.process_index, split.rows.num_rows, accelerator.num_processes)
        with torch.no_grad():
            max_tokens = tokens_per_batch(accelerator.device)
            logits = teacher_logits(self._teacher, self._inputs(split, my_rows), max_tokens)
        gathered = dict(gather_object(list(zip(my_rows, logits.tolist(), strict=True))))
        # Sorted by row, so that the scores do not depend on the number of processes.
        logits_NC = np.array([gathered[row] for row in range(split.rows.num_rows)], dtype=np.float32)
        target, label_N = self._teacher.target, split.label_N
        counts = class_summary(target, logits_NC, label_N)
        counts.pop("macro_f1", None)  # a metric of a task by its own choice
        return score_logits(self._task.metrics, target, logits_NC, label_N, split.score_N) | counts

    def _inputs(self, split: Split, numbers: Sequence[int]) -> list[Tokenized]:
        """Returns the rows with these numbers in tokens."""
        rows = split.rows.take(pa.array(numbers, pa.int64()))
        return self._teacher.reader.tokenize(*sentences(rows), self._max_seq_length)


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


def rows_of(source: Source, share: float | None) -> dict[str, pa.Table]:
    """Returns the rows of the splits, with a share of the training rows held out, if it is given. See `hold_out`."""
    return source.splits if share is None else hold_out(source.splits, share)


def hold_out(splits: dict[str, pa.Table], share: float) -> dict[str, pa.Table]:
    """Returns the splits with a fixed choice of training rows as the first dev split, which selects the best epoch.

    Args:
        splits: rows by split, with ``train``.
        share: the share of the training rows that becomes the split ``held-out``.

    Raises:
        DataError: if no row would be held out, or no row would be left.
    """
    train = splits["train"]
    held_out = held_out_rows(train.num_rows, share)
    parts = {"train": train.take(np.delete(np.arange(train.num_rows), held_out)), HELD_OUT: train.take(held_out)}
    return parts | {name: rows for name, rows in splits.items() if name != "train"}


def _split(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Split:
    parts = (rows.slice(start, ROWS_AT_ONCE) for start in range(0, rows.num_rows, ROWS_AT_ONCE))
    # An encoder for another language would train without an error on only unknown tokens.
    first = teacher.reader.tokenize(*sentences(rows.slice(0, KNOWN_ROWS)), max_seq_length)
    require_known(teacher.tokenizer, first, f"model {teacher.name}")
    lengths = [len(row.ids) for part in parts for row in teacher.reader.tokenize(*sentences(part), max_seq_length)]
    return Split(rows, np.array(lengths, dtype=np.int64), *gold_arrays(teacher.target, rows))
