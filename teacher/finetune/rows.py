"""The rows that a classifier is fine-tuned and scored on."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Ints
from pipeline.errors import DataError
from pipeline.sources import ROWS_AT_ONCE, Source, load_source, load_word_source, sentences
from pipeline.tasks.target import gold_arrays, gold_classes, has_gold
from pipeline.tasks.task import Task
from pipeline.text.known import ROWS as KNOWN_ROWS
from pipeline.text.known import require_known
from pipeline.training.held_out import HELD_OUT, held_out_rows
from teacher.config import FinetuneTask
from teacher.models.classifier import Teacher


@dataclass(frozen=True)
class Split:
    """Rows of a split; as tokens, which take far more memory than their texts, only those of a batch.

    Attributes:
        rows: the source rows, N of them.
        lengths_N: tokens per row.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where there is none; see `gold_arrays`.
        score_N: float32 gold scores, NaN where there is none.
    """

    rows: pa.Table
    lengths_N: Ints
    label_N: Ints
    score_N: Floats

    def gold(self, teacher: Teacher) -> tuple[Floats | Ints, Ints]:
        """Training targets [N] of every row, [N, C] for labels apart, and the numbers of the rows that have one."""
        target, label_N, score_N = teacher.target, self.label_N, self.score_N
        gold_rows = np.flatnonzero(has_gold(target, label_N, score_N))
        if target.kind == "score":
            return score_N, gold_rows
        return label_N if target.kind == "labels" else gold_classes(target, label_N, score_N), gold_rows


def training_source(task: Task, config: FinetuneTask) -> Source:
    """The rows of a task.

    Raises:
        DataError: if there is no train split.
    """
    load = load_word_source if task.type == "tokens" else load_source
    source = load(task, config.data)
    if "train" not in source.splits:
        raise DataError(f"task {task.name!r}: no train split in {source.description}, nothing to fine-tune on")
    return source


def splits_of(source: Source, teacher: Teacher, config: FinetuneTask) -> dict[str, Split]:
    """The splits with the lengths of their rows, and training rows held out if that is asked for.

    Raises:
        DataError: if the teacher's tokenizer does not know the words.
    """
    rows = rows_of(source, config)
    return {name: _split(teacher, part, config.max_seq_length) for name, part in rows.items()}


def rows_of(source: Source, config: FinetuneTask) -> dict[str, pa.Table]:
    """The rows of the splits, and training rows held out if that is asked for."""
    return source.splits if config.held_out is None else hold_out(source.splits, config.held_out)


def hold_out(splits: dict[str, pa.Table], share: float) -> dict[str, pa.Table]:
    """The splits with some training rows, always the same, as the first of the dev splits, which decides what is best.

    Args:
        splits: rows by split, with ``train``.
        share: of the training rows, which becomes the split ``held-out``.

    Raises:
        DataError: if no row would be held out, or none left.
    """
    train = splits["train"]
    held_out = held_out_rows(train.num_rows, share)
    parts = {"train": train.take(np.delete(np.arange(train.num_rows), held_out)), HELD_OUT: train.take(held_out)}
    return parts | {name: rows for name, rows in splits.items() if name != "train"}


def _split(teacher: Teacher, rows: pa.Table, max_seq_length: int) -> Split:
    parts = (rows.slice(start, ROWS_AT_ONCE) for start in range(0, rows.num_rows, ROWS_AT_ONCE))
    first = teacher.reader.tokenize(*sentences(rows.slice(0, KNOWN_ROWS)), max_seq_length)
    require_known(teacher.tokenizer, first, f"model {teacher.name}")
    lengths = [len(row.ids) for part in parts for row in teacher.reader.tokenize(*sentences(part), max_seq_length)]
    return Split(rows, np.array(lengths, dtype=np.int64), *gold_arrays(teacher.target, rows))
