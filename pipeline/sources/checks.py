"""Converts the columns of a source to those of a task, and lists all their problems.

Unusual but valid training rows are reported before anything is trained.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.columns import MAX_EXAMPLES, column_name, plain, row_numbers, rows_in_words, text_column
from pipeline.sources.gold import NUMERAL, READERS, check_words, labels_of_columns, split_words
from pipeline.tasks.task import TRAIN, Task

WORD_LISTS = pa.list_(pa.string())

UNIT = "\x1f"  # joins words for comparisons, because it occurs in no text


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
    return all(len(fields) >= num_columns and any(_is_gold(task, field) for field in fields) for fields in rows)


def _is_gold(task: Task, field: str) -> bool:
    """Whether a field is a label, labels of words, or a number."""
    return bool(NUMERAL.fullmatch(field)) or (bool(field) and all(part in task.labels for part in field.split()))


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
    _check_count(task, split, place, table.num_rows, problems, warnings)
    rows = pa.table(columns)
    if split == TRAIN and not problems:
        warnings += [*absent_labels(task, place, rows), *contradictions(task, place, rows)]
        warnings += swallowed_rows(task, place, table)
    return rows, problems, warnings


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
        warnings.append(
            f"{place}: {accepted[0]!r} contains U+FFFD, a sign of a wrong encoding, in {row_numbers(broken)}"
        )
    return column


def _words(
    table: pa.Table,
    place: str,
    accepted: Sequence[str],
    problems: list[str],
    warnings: list[str],
    taken: Sequence[str],
) -> pa.Array:
    """Returns the column of words. Adds to the problems and to the warnings."""
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
    empty = pc.equal(pc.list_value_length(words), 0).fill_null(False)
    if pc.any(empty).as_py():
        warnings.append(f"{place}: {name!r} has no word in {row_numbers(empty)}")
    return words


def _check_count(task: Task, split: str, place: str, rows: int, problems: list[str], warnings: list[str]) -> None:
    expected = task.splits[split]
    if rows == 0:
        problems.append(f"{place}: split {split!r} has no rows")
    elif expected is not None and rows != expected:
        warnings.append(f"{place}: {rows:,} rows, but the full split {split!r} has {expected:,}")
