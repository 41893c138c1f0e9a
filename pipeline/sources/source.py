"""Finds the rows of a task in files or on the hub, reads them, and lists all problems of all rows.

Unusual but valid training rows are reported before anything is trained.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline import console
from pipeline.environment import data_folder
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.sources.columns import (
    MAX_EXAMPLES,
    blank,
    check_names,
    column_name,
    plain,
    plain_table,
    row_numbers,
    rows_in_words,
    text_column,
)
from pipeline.sources.gold import NUMERAL, READERS, alike, check_words, labels_of_columns, split_words
from pipeline.sources.hugging_face_rows import read_hub, row_files
from pipeline.sources.row_files import FORMATS, open_rows
from pipeline.sources.split_files import EXTENSIONS, expected_names, find_files, passed_over
from pipeline.tasks.task import TRAIN, Task

ROWS_AT_ONCE = 8192
MOST_NAMED = 6  # files in a message
HASHED_COLUMNS = ["sentence1", "sentence2", "label", "score"]
WORD_LISTS = pa.list_(pa.string())

UNIT = "\x1f"  # joins words for comparisons, because it occurs in no text


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
        kept: per split the columns that the manifest keeps. Empty if it names none.
    """

    description: str
    splits: dict[str, pa.Table]
    warnings: list[str] = field(default_factory=list)
    unlabelled: int = 0
    kept: dict[str, pa.Table] = field(default_factory=dict)

    @property
    def texts(self) -> "Source":
        """The rows with texts. Labelled words are joined by spaces."""
        splits = {}
        for split, rows in self.splits.items():
            place = rows.schema.get_field_index("sentence1")
            is_text = pa.types.is_string(rows.schema.field(place).type)
            texts = rows.column(place) if is_text else pc.binary_join(rows.column(place), " ")
            splits[split] = rows.set_column(place, "sentence1", texts)
        return replace(self, splits=splits)

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
    tables, kept = {}, {}
    for split, (place, table) in raw.items():
        if task.columns.keep:
            names = [column_name(table.column_names, place, (name,), problems) for name in task.columns.keep]
            kept[split] = plain_table(table.select([name for name in names if name is not None]))
        tables[split], split_problems, split_warnings = check_split(task, split, place, table)
        problems += split_problems
        warnings += split_warnings
    raise_all(DataError, f"task {task.name!r} cannot be read from {description}", problems)
    for warning in warnings:
        console.warn(warning)
    return Source(description, tables, warnings, kept=kept)


def _read(
    task: Task, data: Path | None, splits: tuple[str, ...]
) -> tuple[str, dict[str, tuple[str, pa.Table]], list[str]]:
    folder = data or _local_folder(task)
    if folder is None:
        description, tables = read_hub(task, splits)
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
    known |= {*(task.columns.keep or ())}
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


def absent_labels(task: Task, place: str, rows: pa.Table) -> list[str]:
    """Returns a warning with the labels that no row has."""
    gold = rows.column("label").drop_null()
    if not task.labels or not len(gold):
        return []
    values = gold if task.type == "classification" else pc.list_flatten(gold)
    absent = [name for k, name in enumerate(task.labels) if k not in {*pc.unique(values).to_pylist()}]
    if not absent:
        return []
    return [f"{place}: no row has the label {', '.join(absent[:MAX_EXAMPLES])}. It cannot be learned"]


def contradictions(task: Task, place: str, rows: pa.Table) -> list[str]:
    """Returns a warning with the number of texts or pairs with several gold labels or scores, and of their rows."""
    gold = "score" if task.type == "regression" else "label"
    rows = rows.filter(pc.is_valid(rows.column(gold)))
    names = ["sentence1", "sentence2"]
    table = pa.table({name: _comparable(rows.column(name)) for name in (*names, gold)} | {"row": rows["source_row"]})
    counted = table.group_by(names).aggregate([(gold, "count_distinct"), ("row", "min"), ("row", "count")])
    odd = counted.filter(pc.greater(counted.column(f"{gold}_count_distinct"), 1))
    if not odd.num_rows:
        return []
    count, first = pc.sum(odd.column("row_count")).as_py(), min(odd["row_min"].to_pylist())
    what = "one text has" if odd.num_rows == 1 else f"{odd.num_rows:,} texts have"
    return [f"{place}: {what} several {gold}s, in {count:,} rows, first in {rows_in_words([first])}"]


def swallowed_rows(task: Task, place: str, table: pa.Table) -> list[str]:
    """Returns a warning about texts of a CSV file that look like several rows, such as after a misplaced quote.

    Args:
        task: the task.
        place: the file, for messages.
        table: its rows before they were converted.
    """
    if ".csv" not in place.lower() or len(table.column_names) < 2:
        return []
    odd: set[int] = set()
    for accepted in (task.columns.sentence1, task.columns.sentence2 or ()):
        name = column_name(table.column_names, place, accepted, []) if accepted else None
        texts = pa.nulls(0) if name is None else plain(table.column(name))
        if pa.types.is_string(texts.type):
            long = pc.indices_nonzero(pc.match_substring(texts, "\n").fill_null(False)).to_pylist()
            odd.update(row for row in long if _looks_like_rows(task, texts[row].as_py(), len(table.column_names)))
    if not odd:
        return []
    where = rows_in_words(sorted(odd))
    return [f"{place}: a text in quotes looks like several rows of the file, in {where}. Is a quote missing?"]


def _looks_like_rows(task: Task, text: str, num_columns: int) -> bool:
    """Whether every line except the first and the last has as many fields as the file, including gold.

    A misplaced quote begins within a row and ends within another one. With two lines, the first one is checked.
    """
    lines = text.split("\n")
    rows = [[field.strip(' "') for field in line.split(",")] for line in (lines[1:-1] or lines[:1])]
    return all(
        len(fields) >= num_columns
        and any(
            (bool(NUMERAL.fullmatch(field)) or (bool(field) and all(part in task.labels for part in field.split())))
            for field in fields
        )
        for fields in rows
    )


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column as values for grouping. Lists are joined to texts."""
    if not pa.types.is_list(column.type):
        return column
    texts = column.cast(pa.list_(pa.string()))
    return pc.binary_join(texts, UNIT)


def check_split(task: Task, split: str, place: str, table: pa.Table) -> tuple[pa.Table, list[str], list[str]]:
    """Converts the rows of one split to the columns of tasks, and lists all their problems.

    Args:
        task: the manifest to check against.
        split: the split's name.
        place: file or hub address, for messages.
        table: the rows as they were read.

    Returns:
        The table with the contract's columns (unusable if there are problems), the problems, and the warnings.
    """
    problems: list[str] = []
    warnings: list[str] = []
    columns: dict[str, pa.Array] = {"source_row": pa.array(np.arange(table.num_rows))}
    known = [*task.columns.sentence1, *(task.columns.sentence2 or ()), *(task.columns.label or task.labels)]
    for name, accepted in (("sentence1", task.columns.sentence1), ("sentence2", task.columns.sentence2)):
        columns[name] = pa.nulls(table.num_rows, pa.string())
        if accepted is not None:
            read = _words if task.type == "token_labels" else _text
            columns[name] = read(table, place, accepted, problems, warnings, known)
    columns["label"] = pa.nulls(table.num_rows, pa.int32())
    columns["score"] = pa.nulls(table.num_rows, pa.float32())
    gold = "score" if task.type == "regression" else "label"
    if task.columns.label is None:
        columns[gold] = labels_of_columns(task, table, place, problems, known)
    else:
        label_name = column_name(table.column_names, place, task.columns.label, problems, known)
        if label_name is not None:
            columns[gold] = READERS[task.type](task, plain(table.column(label_name)), place, problems)
    if task.type == "token_labels" and not problems:
        check_words(task, columns["sentence1"], columns["label"], place, problems, warnings)
    if columns[gold].null_count and not problems:
        warnings.append(f"{place}: {columns[gold].null_count:,} of {table.num_rows:,} rows have no gold label")
    expected = task.splits[split]
    if table.num_rows == 0:
        problems.append(f"{place}: split {split!r} has no rows")
    elif expected is not None and table.num_rows != expected:
        warnings.append(f"{place}: {table.num_rows:,} rows, but the full split {split!r} has {expected:,}")
    rows = pa.table(columns)
    if split == TRAIN and not problems:
        warnings += [f"{place}: the labels {pair} look alike. Are they one label?" for pair in alike(task.labels)]
        warnings += [*absent_labels(task, place, rows), *contradictions(task, place, rows)]
        warnings += swallowed_rows(task, place, table)
    return rows, problems, warnings


def _text(
    table: pa.Table, place: str, accepted: Sequence[str], problems: list[str], warnings: list[str], taken: Sequence[str]
) -> pa.Array:
    column = text_column(table, place, accepted, problems, taken)
    empty = blank(column)
    if pc.any(empty).as_py():
        warnings.append(f"{place}: {accepted[0]!r} is empty in {row_numbers(empty)}")
    broken = pc.match_substring(column, "\ufffd").fill_null(False)
    if pc.any(broken).as_py():
        warnings.append(
            f"{place}: {accepted[0]!r} contains U+FFFD, a sign of a wrong encoding, in {row_numbers(broken)}"
        )
    return column


def _words(
    table: pa.Table, place: str, accepted: Sequence[str], problems: list[str], warnings: list[str], taken: Sequence[str]
) -> pa.Array:
    words = word_column(table, place, accepted, problems, taken)
    empty = blank(words)
    if pc.any(empty).as_py():
        warnings.append(f"{place}: {accepted[0]!r} has no word in {row_numbers(empty)}")
    return words


def word_column(
    table: pa.Table, place: str, accepted: Sequence[str], problems: list[str], taken: Sequence[str] = ()
) -> pa.Array:
    """Returns a column of words as lists of strings. Adds to the problems. See `column_name`."""
    name = column_name(table.column_names, place, accepted, problems, taken)
    if name is None:
        return pa.nulls(table.num_rows, WORD_LISTS)
    try:
        words = split_words(plain(table.column(name))).cast(WORD_LISTS)
        words.validate(full=True)
    except pa.ArrowException as error:
        problems.append(f"{place}: column {name!r} is neither a list of words nor a text: {error}")
        return pa.nulls(table.num_rows, WORD_LISTS)
    if words.null_count:
        problems.append(f"{place}: {name!r} is null in {row_numbers(pc.is_null(words))}")
    elif words.flatten().null_count:
        lacking = pa.array([None in row for row in words.to_pylist()])
        problems.append(f"{place}: a word of {name!r} is null in {row_numbers(lacking)}")
    return words
