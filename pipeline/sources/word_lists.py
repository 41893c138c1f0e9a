"""Rows of labelled words: a column of words and a column of labels, as lists or as texts with spaces between."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.label_lists import numbered
from pipeline.sources.plain import plain
from pipeline.sources.wording import MAX_EXAMPLES, column_name, row_numbers
from pipeline.tasks.spans import begins_inside
from pipeline.tasks.target import LABEL_LISTS
from pipeline.tasks.task import Task

WORD_LISTS = pa.list_(pa.string())


def words_column(
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
        words = _lists(plain(table.column(name))).cast(WORD_LISTS)
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


def word_labels(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """The column of labels, by their numbers; null where there is no gold. What is wrong is added to the problems."""
    if pa.types.is_null(raw.type):
        return pa.nulls(len(raw), LABEL_LISTS)
    lists = _lists(pc.if_else(pc.equal(raw, ""), None, raw) if pa.types.is_string(raw.type) else raw)
    if not _is_list(lists.type):
        problems.append(
            f"{place}: label holds {raw.type}, but a token_labels task has lists, or texts with spaces between"
        )
        return pa.nulls(len(raw), LABEL_LISTS)
    return pa.array(numbered(task, lists.to_pylist(), place, problems), LABEL_LISTS)


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


def _lists(column: pa.Array) -> pa.Array:
    """Texts as their words; of a text without any that would be one empty word."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    texts = pc.utf8_trim_whitespace(column)
    words = pc.utf8_split_whitespace(texts)
    return pc.if_else(pc.equal(texts, ""), pa.scalar([], words.type), words)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
