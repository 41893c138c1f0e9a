"""From a source's columns to the contract's, gold included, with a list of everything that is wrong with them."""

import re
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.columns import MAX_EXAMPLES, column_name, plain, row_numbers, text_column
from pipeline.tasks.spans import begins_inside
from pipeline.tasks.target import LABEL_LISTS
from pipeline.tasks.task import Task

NO_GOLD: dict[Any, int | None] = {None: None, "": None, -1: None, "-1": None, "-": None}
UNKNOWN_TEXT = "-"  # of several labels: an empty text says that no label holds
NUMERAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
YES_OR_NO = {None: None, "": None, "-1": None, "0": 0, "1": 1, "false": 0, "true": 1}


def labels(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """A column of labels, by their numbers; null where there is no gold. What is wrong is added to the problems."""
    if pa.types.is_nested(raw.type) or pa.types.is_temporal(raw.type):
        problems.append(f"{place}: label holds {raw.type}, not numbers or names")
        return pa.nulls(len(raw), pa.int32())
    numbers = NO_GOLD | _label_numbers(task)
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
        problems.append(f"{place}: label {_as_written(distinct[k])} in {rows} {_not_a_label(task)}")
    if wrong:
        return pa.nulls(len(raw), pa.int32())
    return pa.array([numbers[value] for value in distinct], pa.int32()).take(encoded.indices)


def scores(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """A column of scores in the task's range; null where there is no gold. What is wrong is added to the problems."""
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


def label_lists(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """A column of lists, or of texts with `label_separator` between labels; null where there is no gold.

    An empty list or text says that none of the labels holds. What is wrong is added to the problems.
    """
    if pa.types.is_string(raw.type):
        values = [None if text is None or text == UNKNOWN_TEXT else _split(task, text) for text in raw.to_pylist()]
    elif pa.types.is_list(raw.type) or pa.types.is_large_list(raw.type):
        values = raw.to_pylist()
    else:
        problems.append(
            f"{place}: label holds {raw.type}, but a multilabel task has lists, or texts with {task.label_separator!r} "
            "between labels; for a column a label, leave `label` out of `columns`"
        )
        return pa.nulls(len(raw), LABEL_LISTS)
    lists = _numbered(task, values, place, problems)
    repeated = pa.array([_repeats_a_number(task, row or ()) for row in values])
    if not problems and pc.any(repeated).as_py():
        problems.append(
            f"{place}: label has a number twice in {row_numbers(repeated)}; it lists those of the labels that hold, "
            "and not 0 or 1 for each; [0, 1, 0, 1] is written [1, 3]"
        )
    return pa.array([None if row is None else sorted(set(row)) for row in lists], LABEL_LISTS)


def labels_of_columns(task: Task, table: pa.Table, place: str, problems: list[str], taken: Sequence[str]) -> pa.Array:
    """A column for each label, with 0 or 1, false or true; a row without any number has no gold.

    What is wrong is added to the problems; ``taken`` are the columns that the task has, for advice.
    """
    names = [column_name(table.column_names, place, (label,), problems, taken) for label in task.labels]
    if None in names:
        return pa.nulls(table.num_rows, LABEL_LISTS)
    columns = [[_spelt(value) for value in table.column(name).to_pylist()] for name in names]
    for name, column in zip(names, columns, strict=True):
        odd = [value not in YES_OR_NO for value in column]
        if any(odd):
            problems.append(
                f"{place}: column {name!r} holds {column[odd.index(True)]!r} in {row_numbers(pa.array(odd))}, "
                "neither 0 nor 1"
            )
            return pa.nulls(table.num_rows, LABEL_LISTS)
    answer_CN = np.array([[YES_OR_NO[value] for value in column] for column in columns], dtype=np.float64)
    unknown_CN = np.isnan(answer_CN)
    is_partly_N = unknown_CN.any(axis=0) & ~unknown_CN.all(axis=0)
    if is_partly_N.any():
        rows = row_numbers(pa.array(is_partly_N))
        problems.append(f"{place}: some labels, but not all, are missing in {rows}")
    values = [None if np.isnan(row_C).any() else np.flatnonzero(row_C).tolist() for row_C in answer_CN.T]
    return pa.array(values, LABEL_LISTS)


def word_labels(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """The column of labels, by their numbers; null where there is no gold. What is wrong is added to the problems."""
    lists = split_words(pc.if_else(pc.equal(raw, ""), None, raw) if pa.types.is_string(raw.type) else raw)
    if not _is_list(lists.type):
        problems.append(
            f"{place}: label holds {raw.type}, but a token_labels task has lists, or texts with spaces between"
        )
        return pa.nulls(len(raw), LABEL_LISTS)
    return pa.array(_numbered(task, lists.to_pylist(), place, problems), LABEL_LISTS)


def check_words(
    task: Task, words: pa.Array, labels: pa.Array, place: str, problems: list[str], warnings: list[str]
) -> None:
    """Adds to the problems which rows have not one label for each word, and to the warnings which begin with I-."""
    counts = [pc.list_value_length(column) for column in (words, labels)]
    wrong = pc.not_equal(*counts).fill_null(False)
    for row in pc.indices_nonzero(wrong).to_pylist()[:MAX_EXAMPLES]:
        numbers = " and ".join(f"{count[row]} {what}" for count, what in zip(counts, ("words", "labels"), strict=True))
        problems.append(f"{place}: row {row} has {numbers}, which is not one for each")
    inside = [row is not None and begins_inside([task.labels[k] for k in row]) for row in labels.to_pylist()]
    if any(inside):
        warnings.append(f"{place}: a span begins with I- in {row_numbers(pa.array(inside))}; it counts as one with B-")


READERS = {"classification": labels, "multilabel": label_lists, "regression": scores, "token_labels": word_labels}


def split_words(column: pa.Array) -> pa.Array:
    """Texts as their words; of a text without any that would be one empty word."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    texts = pc.utf8_trim_whitespace(column)
    words = pc.utf8_split_whitespace(texts)
    return pc.if_else(pc.equal(texts, ""), pa.scalar([], words.type), words)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _numbered(
    task: Task, lists: Sequence[list[Any] | None], place: str, problems: list[str]
) -> Sequence[list[int] | None]:
    """Lists of labels as their numbers; no list at all if one is wrong, which is added to the problems."""
    numbers = _label_numbers(task)
    wrong = dict.fromkeys(item for row in lists for item in row or () if not _is_known(item, numbers))
    for item in list(wrong)[:MAX_EXAMPLES]:
        rows = row_numbers(pa.array([item in (row or ()) for row in lists]))
        problems.append(f"{place}: label {item!r} in {rows} {_not_a_label(task)}")
    if wrong:
        return [None] * len(lists)
    return [None if row is None else [numbers[item] for item in row] for row in lists]


def _label_numbers(task: Task) -> dict[Any, int]:
    """What a label may be in a source: its name or its number; where names are numerals, a name, also as a number."""
    names = {name: number for number, name in enumerate(task.labels)}
    numerals: dict[Any, int] = {
        float(name) if "." in name else int(name): number for name, number in names.items() if NUMERAL.fullmatch(name)
    }
    return (numerals or {key: n for n in range(len(task.labels)) for key in (n, str(n))}) | names


def _not_a_label(task: Task) -> str:
    """What is wrong with a value that is no label."""
    numbered = ", ".join(f"{number}={name}" for number, name in enumerate(task.labels))
    return f"is neither a name nor a number of the task's labels ({numbered})"


def _as_written(label: Any) -> str:
    """A label as its writer thinks of it: whole numbers become floats where some are missing."""
    return f"{label:g}" if isinstance(label, float) else repr(label)


def _split(task: Task, text: str) -> list[str]:
    return [name.strip() for name in text.split(task.label_separator)] if text.strip() else []


def _repeats_a_number(task: Task, row: Sequence[Any]) -> bool:
    numbers = [item for item in row if item not in task.labels]
    return any(numbers.count(number) > 1 for number in numbers)


def _is_known(item: Any, numbers: dict[Any, int]) -> bool:
    return isinstance(item, Hashable) and not isinstance(item, bool) and item in numbers


def _spelt(value: Any) -> Any:
    """A number, a boolean or a text as a text."""
    if value is None or isinstance(value, str):
        return None if value is None else value.strip().lower()
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()


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
    return pa.table(columns), problems, warnings


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
