"""From a source's columns to the contract's, with a list of everything that is wrong with them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.columns import MAX_EXAMPLES, column_name, plain, row_numbers, rows_in_words, text_column
from pipeline.sources.gold import NUMERAL, READERS, check_words, labels_of_columns, split_words
from pipeline.tasks.task import TRAIN, Task

WORD_LISTS = pa.list_(pa.string())


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
        warnings += _odd_gold(task, place, rows)
        warnings += _swallowed_rows(task, place, rows.column("sentence1"), len(table.column_names))
    return rows, problems, warnings


def _odd_gold(task: Task, place: str, rows: pa.Table) -> list[str]:
    """What is unusual about the gold of training rows: labels without any, and texts with several."""
    warnings = []
    gold = rows.column("label").drop_null()
    if task.labels and len(gold):
        values = gold if task.type == "classification" else pc.list_flatten(gold)
        absent = [name for k, name in enumerate(task.labels) if k not in {*pc.unique(values).to_pylist()}]
        if absent:
            warnings.append(f"{place}: no row has the label {', '.join(absent[:MAX_EXAMPLES])}; it cannot be learnt")
    if task.type == "classification" and len(gold):
        with_gold = rows.filter(pc.is_valid(rows.column("label")))
        groups = with_gold.group_by(["sentence1", "sentence2"])
        counted = groups.aggregate([("label", "count_distinct"), ("source_row", "min"), ("source_row", "count")])
        odd = counted.filter(pc.greater(counted.column("label_count_distinct"), 1))
        if odd.num_rows:
            count, first = pc.sum(odd.column("source_row_count")).as_py(), sorted(odd["source_row_min"].to_pylist())
            warnings.append(
                f"{place}: {odd.num_rows:,} texts have several labels, in {count:,} rows, first in "
                f"{rows_in_words(first[:1])}"
            )
    return warnings


def _swallowed_rows(task: Task, place: str, texts: pa.ChunkedArray, num_columns: int) -> list[str]:
    """Says which texts of a CSV file look like several of its rows, as behind a quote that should not be one."""
    if ".csv" not in place.lower() or num_columns < 2 or not pa.types.is_string(texts.type):
        return []
    long = pc.indices_nonzero(pc.match_substring(texts, "\n").fill_null(False)).to_pylist()
    odd = [row for row in long if _looks_like_rows(task, texts[row].as_py(), num_columns)]
    if not odd:
        return []
    return [
        f"{place}: a text in quotes looks like several rows of the file, in {rows_in_words(odd)}; is a quote missing?"
    ]


def _looks_like_rows(task: Task, text: str, num_columns: int) -> bool:
    """Whether every line but the last, which a quote ends, has as many fields as the file, and gold among them."""
    rows = [[field.strip(' "') for field in line.split(",")] for line in text.split("\n")[:-1]]
    return all(
        len(fields) >= num_columns and any(field in task.labels or NUMERAL.fullmatch(field) for field in fields)
        for fields in rows
    )


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


def _words(
    table: pa.Table,
    place: str,
    accepted: Sequence[str],
    problems: list[str],
    warnings: list[str],
    taken: Sequence[str],
) -> pa.Array:
    """The column of words; what is wrong with it is added to the problems, what is odd to the warnings."""
    name = column_name(table.column_names, place, accepted, problems, taken)
    if name is None:
        return pa.nulls(table.num_rows, WORD_LISTS)
    try:
        words = split_words(plain(table.column(name))).cast(WORD_LISTS)
        words.validate(full=True)
    except pa.ArrowException as error:
        problems.append(f"{place}: column {name!r} is no list of words, nor a text of them: {error}")
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
        warnings.append(f"{place}: {rows:,} rows where the whole split {split!r} has {expected:,}")
