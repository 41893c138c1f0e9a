"""Finds the rows of a task in files or on the hub, reads them, and checks every row."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pipeline import console
from pipeline.environment import data_folder
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.sources import hub_rows
from pipeline.sources.checks import check_split
from pipeline.sources.class_names import check_names
from pipeline.sources.row_files import FORMATS, open_rows
from pipeline.sources.saved_rows import row_files
from pipeline.sources.split_files import EXTENSIONS, expected_names, find_files, passed_over
from pipeline.tasks.task import TRAIN, Task

ROWS_AT_ONCE = 8192
MOST_NAMED = 6  # files in a message
HASHED_COLUMNS = ["sentence1", "sentence2", "label", "score"]


@dataclass(frozen=True)
class Source:
    """The rows of a task.

    Attributes:
        description: their origin, for the record.
        splits: a table per split with the columns source_row (int64), sentence1, sentence2 (string), label (int32) and
            score (float32). label and score are null without gold. For labelled words, sentence1 is a list of words,
            and label a list with one label per word.
        warnings: unusual facts about them, one sentence each.
        unlabelled: the number of rows without gold that were added at the end of ``train``.
    """

    description: str
    splits: dict[str, pa.Table]
    warnings: list[str] = field(default_factory=list)
    unlabelled: int = 0

    def own(self, split: str) -> pa.Table:
        """Returns the task's own rows of a split."""
        rows = self.splits[split]
        return rows.slice(0, rows.num_rows - self.unlabelled) if split == TRAIN else rows


def load_source(task: Task, data: Path | None = None, splits: tuple[str, ...] = ()) -> Source:
    """Returns the rows of a task's splits after checking every row.

    Args:
        task: the task.
        data: a file or folder with the task's rows. Default: ``DISTILL_DATA``, then the hub.
        splits: the requested splits. Default: all splits of the task.

    Raises:
        ConfigError: if the task lacks a split, or labels words, for which `load_word_source` is the function.
        DataError: if nothing is found or rows are wrong, listing every problem.
    """
    if task.type == "token_labels":
        raise ConfigError(
            f"task {task.name!r}: labels words (type: token_labels), but this command is for texts with one "
            "answer each. See docs/labels.md for labelled words"
        )
    return _load(task, data, splits)


def load_word_source(task: Task, data: Path | None = None, splits: tuple[str, ...] = ()) -> Source:
    """Returns the rows of a task that labels words. See `load_source` for arguments and errors."""
    if task.type != "token_labels":
        raise ConfigError(
            f"task {task.name!r}: is of type {task.type}, but this command is for labelled words (type: token_labels)"
        )
    return _load(task, data, splits)


def _load(task: Task, data: Path | None, splits: tuple[str, ...]) -> Source:
    wanted = splits or tuple(task.splits)
    unknown = [name for name in wanted if name not in task.splits]
    if unknown:
        raise ConfigError(
            f"--splits: {task.name!r} has no split {unknown[0]!r}. Its splits are {', '.join(task.splits)}"
        )
    description, raw, warnings = _read(task, data, wanted)
    problems: list[str] = []
    tables = {}
    for split, (place, table) in raw.items():
        tables[split], split_problems, split_warnings = check_split(task, split, place, table)
        problems += split_problems
        warnings += split_warnings
    raise_all(DataError, f"task {task.name!r} cannot be read from {description}", problems)
    for warning in warnings:
        console.warn(warning)
    return Source(description, tables, warnings)


def _read(
    task: Task, data: Path | None, splits: tuple[str, ...]
) -> tuple[str, dict[str, tuple[str, pa.Table]], list[str]]:
    folder = data or _local_folder(task)
    if folder is None:
        description, tables = hub_rows.read(task, splits)
        return description, tables, []
    files = find_files(task, folder, splits)
    if not files:
        there = [path.name for path in row_files(folder, FORMATS)[:MOST_NAMED]]
        instead = f". It contains {', '.join(there)}" if there else ""
        raise DataError(
            f"{folder}: contains no rows of {' or '.join(splits)} for task {task.name!r}. Expected "
            f"{expected_names(splits[0])}{instead}"
        )
    kinds = ", ".join(EXTENSIONS)
    warnings = [
        f"split {name!r} of task {task.name!r} is not in {folder}, because no file there is called {name} "
        f"({kinds}). Continuing without it"
        for name in splits
        if name not in files
    ]
    if not folder.is_file() and (others := passed_over(task, files)):
        named = ", ".join(path.name for path in others[:MOST_NAMED])
        more = f", and {len(others) - MOST_NAMED:,} more" if len(others) > MOST_NAMED else ""
        warnings.append(f"{folder}: other files with rows are not read: {named}{more}")
    return str(folder), {split: _table(task, paths) for split, paths in files.items()}, warnings


def _table(task: Task, paths: Sequence[Path]) -> tuple[str, pa.Table]:
    """Returns the rows of a split's files, with only those columns that a task may have."""
    known = {*task.columns.sentence1, *(task.columns.sentence2 or ()), *(task.columns.label or task.labels)}
    label = (task.columns.label or ("label",))[0]
    files = [open_rows(path, task.headerless_tsv_columns, task.columns.sentence1[0], label) for path in paths]
    for file in files:
        check_names(task, str(file.path), file.class_names)
    tables = [file.wanted(known) for file in files]
    place = str(paths[0]) if len(paths) == 1 else f"{paths[0].parent} ({paths[0].name} to {paths[-1].name})"
    return place, pa.concat_tables(tables, promote_options="permissive")


def _local_folder(task: Task) -> Path | None:
    root = data_folder()
    if root is None:
        return None
    if not root.is_dir():
        raise ConfigError(f"DISTILL_DATA={root}: no such folder")
    if find_files(task, root, tuple(task.splits)) or task.hub is None:
        return root
    return None


def sentences(rows: pa.Table) -> tuple[list[str], list[str] | None]:
    """Returns the texts of source rows: the first sentences, and the second ones or None for single sentences."""
    second = rows.column("sentence2")
    return rows.column("sentence1").to_pylist(), None if second.null_count == len(second) else second.to_pylist()


def rows_sha256(rows: pa.Table) -> str:
    """Returns the hash of a split's texts and gold, in row order."""
    digest = hashlib.sha256()
    for batch in rows.select(HASHED_COLUMNS).to_batches(max_chunksize=ROWS_AT_ONCE):
        hash_rows(digest, batch)
    return digest.hexdigest()


def hash_rows(digest: "hashlib._Hash", rows: pa.RecordBatch) -> None:
    """Adds rows of the `HASHED_COLUMNS` to the hash of `rows_sha256`."""
    for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        digest.update(repr(row).encode("utf-8", "surrogatepass"))
