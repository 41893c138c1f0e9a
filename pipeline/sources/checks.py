"""From a source's columns to the contract's, with a list of everything that is wrong with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.label_lists import label_lists, label_numbers, labels_of_columns, not_a_label
from pipeline.sources.plain import plain
from pipeline.sources.word_lists import check_words, word_labels, words_column
from pipeline.sources.wording import MAX_EXAMPLES, column_name, row_numbers
from pipeline.tasks.task import Task

NO_GOLD: dict[Any, int | None] = {None: None, "": None, -1: None, "-1": None, "-": None}


def check_split(task: Task, split: str, place: str, table: pa.Table) -> tuple[pa.Table, list[str], list[str]]:
    """The rows of one split as tasks have them, and all that is wrong with them.

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
            read = words_column if task.type == "token_labels" else _text
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
    _check_count(task, split, place, table.num_rows, problems, warnings)
    return pa.table(columns), problems, warnings


def text_column(
    table: pa.Table, place: str, accepted: Sequence[str], problems: list[str], taken: Sequence[str] = ()
) -> pa.Array:
    """A column of a table as text, of strings; what is wrong with it is added to the problems, see `column_name`."""
    name = column_name(table.column_names, place, accepted, problems, taken)
    return pa.nulls(table.num_rows, pa.string()) if name is None else checked_text(table, place, name, problems)


def checked_text(table: pa.Table, place: str, name: str, problems: list[str], first_row: int = 0) -> pa.Array:
    """A column as `text_column` gives it, by its name, of a table that begins with that row of its file."""
    column = plain(table.column(name))
    if not pa.types.is_string(column.type):
        problems.append(f"{place}: column {name!r} holds {column.type}, not text")
        return pa.nulls(table.num_rows, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        problems.append(f"{place}: column {name!r} is not valid UTF-8: {error}")
        return pa.nulls(table.num_rows, pa.string())
    if column.null_count:
        problems.append(f"{place}: {name!r} is null in {row_numbers(pc.is_null(column), first_row)}")
    return column


def _text(
    table: pa.Table,
    place: str,
    accepted: Sequence[str],
    problems: list[str],
    warnings: list[str],
    taken: Sequence[str],
) -> pa.Array:
    column = text_column(table, place, accepted, problems, taken)
    empty = pc.equal(pc.utf8_trim_whitespace(column), "").fill_null(False)
    if pc.any(empty).as_py():
        warnings.append(f"{place}: {accepted[0]!r} is empty in {row_numbers(empty)}")
    broken = pc.match_substring(column, "\ufffd").fill_null(False)
    if pc.any(broken).as_py():
        warnings.append(f"{place}: {accepted[0]!r} holds U+FFFD, a sign of a wrong encoding, in {row_numbers(broken)}")
    return column


def _labels(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    if pa.types.is_nested(raw.type) or pa.types.is_temporal(raw.type):
        problems.append(f"{place}: label holds {raw.type}, not numbers or names")
        return pa.nulls(len(raw), pa.int32())
    numbers = NO_GOLD | label_numbers(task)
    if pa.types.is_floating(raw.type):
        nan = pc.is_nan(raw).fill_null(False)
        if pc.any(nan).as_py():
            problems.append(f"{place}: label is NaN in {row_numbers(nan)}")
            return pa.nulls(len(raw), pa.int32())
    encoded = raw.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    wrong = [k for k, value in enumerate(distinct) if value not in numbers or isinstance(value, bool)]
    for k in wrong[:MAX_EXAMPLES]:
        rows = row_numbers(pc.equal(encoded.indices, k).fill_null(False))
        problems.append(f"{place}: label {_as_written(distinct[k])} in {rows} {not_a_label(task)}")
    if wrong:
        return pa.nulls(len(raw), pa.int32())
    return pa.array([numbers[value] for value in distinct], pa.int32()).take(encoded.indices)


def _as_written(label: Any) -> str:
    """A label as its writer thinks of it: whole numbers become floats where some are missing."""
    return f"{label:g}" if isinstance(label, float) else repr(label)


def _scores(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    try:
        if pa.types.is_string(raw.type):
            raw = pc.if_else(pc.equal(raw, ""), None, raw)
        scores, exact = raw.cast(pa.float32()), raw.cast(pa.float64())  # 0.1 in float32 is more than 0.1
    except pa.ArrowException as error:
        problems.append(f"{place}: score is not a number: {error}")
        return pa.nulls(len(raw), pa.float32())
    assert task.score_range is not None
    low, high = task.score_range
    wrong = pc.invert(pc.and_(pc.greater_equal(exact, low), pc.less_equal(exact, high))).fill_null(False)
    if pc.any(wrong).as_py():
        values = pc.filter(exact, wrong).to_pylist()[:MAX_EXAMPLES]
        problems.append(f"{place}: score {values} outside [{low:g}, {high:g}] in {row_numbers(wrong)}")
    return scores


READERS = {"classification": _labels, "multilabel": label_lists, "regression": _scores, "token_labels": word_labels}


def _check_count(task: Task, split: str, place: str, rows: int, problems: list[str], warnings: list[str]) -> None:
    expected = task.splits[split]
    if rows == 0:
        problems.append(f"{place}: split {split!r} has no rows")
    elif expected is not None and rows != expected:
        warnings.append(f"{place}: {rows:,} rows where the whole split {split!r} has {expected:,}")
