"""Converts the gold in a file to numbers: a label, several labels, a score, or a label for each word."""

import ast
import re
import unicodedata
from collections.abc import Hashable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.sources.columns import MAX_EXAMPLES, column_name, row_numbers, type_name
from pipeline.tasks.spans import begins_inside
from pipeline.tasks.task import Task

GOLD_TYPE = pa.int32()  # the Arrow type of a row's single label
LABEL_LISTS = pa.list_(pa.int32())  # the type of a row's labels, if any number of them may hold
MINUS_ONE = (-1, "-1", "-1.0")  # "no gold" in GLUE and many others, but also the lowest of -1, 0 and 1
NO_SCORE = -1.0  # "no gold" of scores, whose range may contain it
WHOLE = re.compile(r"(-?[0-9]+)\.0+")  # pandas writes integers in this form if some are missing
MISSING = ("", "-", "nan", "null", "none", "n/a", "<na>")  # how programs write missing gold, in small letters
NO_GOLD: dict[Any, int | None] = dict.fromkeys((None, *MISSING))
NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
AMBIGUOUS = {1: [0], 2: [0, 1]}  # with so few labels, a list of 0 and 1 may also be their numbers
NUMERAL = re.compile(r"-?[0-9]+(\.[0-9]+)?")
YES_OR_NO = NO_GOLD | {"-1": None, "0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}


def labels(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """Returns a column of labels as numbers, with null for missing gold. Adds to the problems.

    A list of one label is that label, as in fastText's files. So is a list of 0 or 1 for each label with a single 1.
    """
    if pa.types.is_list(raw.type) and not pa.types.is_nested(raw.type.value_type):
        flags_N = _flags_of_labels(task, raw.to_pylist()) if len(task.labels) > 1 else None
        if flags_N is not None and all(row is None or sum(row) == 1 for row in flags_N):
            return pa.array([None if row is None else row.index(1) for row in flags_N], pa.int32())
        several = pc.greater(pc.list_value_length(raw), 1).fill_null(False)
        if pc.any(several).as_py():
            problems.append(
                f"{place}: several labels in {row_numbers(several)}, but a task of this type has one for each "
                "row. Use `type: multilabel` for several"
            )
            return pa.nulls(len(raw), pa.int32())
        raw = pa.array([row[0] if row else None for row in raw.to_pylist()], raw.type.value_type)
    if pa.types.is_nested(raw.type) or pa.types.is_temporal(raw.type):
        problems.append(f"{place}: label contains {type_name(raw.type)}, not numbers or names")
        return pa.nulls(len(raw), pa.int32())
    if pa.types.is_floating(raw.type):
        raw = pc.if_else(pc.is_nan(raw), None, raw)  # pandas stores missing values as NaN
    encoded = raw.dictionary_encode()
    numbers = NO_GOLD | dict.fromkeys(MINUS_ONE) | _label_numbers(task)
    distinct = [_spelling(task, _whole(value), numbers) for value in encoded.dictionary.to_pylist()]
    if pa.types.is_boolean(raw.type):
        distinct = [_name_of_boolean(task, value) for value in distinct]
    wrong = [k for k, value in enumerate(distinct) if value not in numbers or isinstance(value, bool)]
    for k in wrong[:MAX_EXAMPLES]:
        rows = row_numbers(pc.equal(encoded.indices, k).fill_null(False))
        problems.append(f"{place}: label {_as_written(distinct[k])} in {rows} {_not_a_label(task, distinct[k])}")
    if wrong:
        return pa.nulls(len(raw), pa.int32())
    found = pa.array([numbers[value] for value in distinct], pa.int32()).take(encoded.indices)
    if any(value in MINUS_ONE for value in distinct):
        minus = pc.is_in(encoded.indices, pa.array([k for k, value in enumerate(distinct) if value in MINUS_ONE]))
        _check_minus_one(task, distinct, minus, found, place, problems)
    return found


def _check_minus_one(
    task: Task, values: Sequence[Any], minus: pa.Array, found: pa.Array, place: str, problems: list[str]
) -> None:
    """Adds a problem if -1 may be a label: if the column contains other numbers, and some label is not among them.

    Otherwise, three labels that are numbered -1, 0 and 1 would lose the first, and the others would get wrong names.
    """
    if "-1" in task.labels or any(isinstance(value, str) and value in task.labels for value in values):
        return
    absent = [name for k, name in enumerate(task.labels) if k not in {*found.unique().to_pylist()}]
    if absent and len(absent) < len(task.labels):
        problems.append(
            f"{place}: label -1 in {row_numbers(minus)} is ambiguous, because the other labels are numbers "
            f"without {task.labels.index(absent[0])}={absent[0]}. If -1 is a label, number the labels from 0 or "
            "use names. If it means that there is no gold, leave these labels empty (null)"
        )


def scores(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """Returns a column of scores in the task's range, with null for missing gold. Adds to the problems."""
    if pa.types.is_boolean(raw.type) or pa.types.is_nested(raw.type) or pa.types.is_temporal(raw.type):
        problems.append(f"{place}: score contains {type_name(raw.type)}, not numbers")
        return pa.nulls(len(raw), pa.float32())
    if pa.types.is_string(raw.type):
        raw = pc.utf8_trim_whitespace(raw)
        raw = pc.if_else(pc.is_in(pc.utf8_lower(raw), pa.array(MISSING)), None, raw)
        odd = pc.invert(pc.match_substring_regex(raw, NUMBER)).fill_null(False)
        if pc.any(odd).as_py():
            values = pc.filter(raw, odd).to_pylist()[:MAX_EXAMPLES]
            problems.append(f"{place}: score {values} in {row_numbers(odd)} is not a number")
            return pa.nulls(len(raw), pa.float32())
    exact = raw.cast(pa.float64(), safe=False)  # 0.1 in float32 is more than 0.1
    exact = pc.if_else(pc.is_nan(exact), None, exact)  # pandas stores missing values as NaN
    assert task.score_range is not None
    low, high = task.score_range
    if not low <= NO_SCORE <= high:
        exact = pc.if_else(pc.equal(exact, NO_SCORE), None, exact)
    scores = exact.cast(pa.float32())
    wrong = pc.invert(pc.and_(pc.greater_equal(exact, low), pc.less_equal(exact, high))).fill_null(False)
    if pc.any(wrong).as_py():
        values = pc.filter(exact, wrong).to_pylist()[:MAX_EXAMPLES]
        problems.append(f"{place}: score {values} outside [{low:g}, {high:g}] in {row_numbers(wrong)}")
    return scores


def label_lists(task: Task, raw: pa.Array, place: str, problems: list[str]) -> pa.Array:
    """Returns a column of lists, from lists or from texts with `label_separator`. Null means missing gold.

    An empty list or text means that no label applies. Adds to the problems.
    """
    if pa.types.is_string(raw.type):
        # An empty text means that no label holds.
        values = [
            None if text is None or (text.strip() and _is_no_gold(task, text)) else _split(task, text)
            for text in raw.to_pylist()
        ]
    elif pa.types.is_list(raw.type):
        values = _without_no_gold(task, raw)
    else:
        problems.append(
            f"{place}: label contains {type_name(raw.type)}, but a multilabel task has lists, or texts with "
            f"{task.label_separator!r} between labels. For a column per label, remove `label` from `columns`"
        )
        return pa.nulls(len(raw), LABEL_LISTS)
    flags_N = _flags_of_labels(task, values)
    unclear = AMBIGUOUS.get(len(task.labels))
    if flags_N is not None and all(row in (None, unclear) for row in flags_N):
        problems.append(
            f"{place}: label is {unclear} in every row. These may be numbers of labels, or 0 or 1 for each "
            "label. Use names of labels"
        )
    if flags_N is not None:
        return pa.array([None if row is None else np.flatnonzero(row).tolist() for row in flags_N], LABEL_LISTS)
    lists = _numbered(task, values, place, problems)
    repeated = pa.array([_repeats_a_number(task, row or ()) for row in values])
    if not problems and pc.any(repeated).as_py():
        problems.append(
            f"{place}: label repeats a number in {row_numbers(repeated)}. A list contains the numbers of the "
            "labels that hold, and not 0 or 1 for each. Write [1, 3] instead of [0, 1, 0, 1]"
        )
    return pa.array([None if row is None else sorted(set(row)) for row in lists], LABEL_LISTS)


def labels_of_columns(task: Task, table: pa.Table, place: str, problems: list[str], taken: Sequence[str]) -> pa.Array:
    """Returns lists from a column per label with 0 or 1, false or true. A row without any value has no gold.

    Adds to the problems. ``taken`` are the task's other columns, for advice.
    """
    names = [column_name(table.column_names, place, (label,), problems, taken) for label in task.labels]
    if None in names:
        return pa.nulls(table.num_rows, LABEL_LISTS)
    columns = [[_spelt(value) for value in table.column(name).to_pylist()] for name in names]
    for name, column in zip(names, columns, strict=True):
        odd = [value not in YES_OR_NO for value in column]
        if any(odd):
            problems.append(
                f"{place}: column {name!r} contains {column[odd.index(True)]!r} in "
                f"{row_numbers(pa.array(odd))}, neither 0 nor 1"
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
    """Returns the column of word labels as numbers, with null for missing gold. Adds to the problems."""
    if pa.types.is_string(raw.type):
        raw = pa.array([None if _is_no_gold(task, text) else text for text in raw.to_pylist()], pa.string())
    lists = split_words(raw)
    if not pa.types.is_list(lists.type):
        problems.append(
            f"{place}: label contains {type_name(raw.type)}, but a token_labels task has lists, or texts with "
            "spaces between labels"
        )
        return pa.nulls(len(raw), LABEL_LISTS)
    return pa.array(_numbered(task, _without_no_gold(task, lists), place, problems), LABEL_LISTS)


def check_words(
    task: Task, words: pa.Array, labels: pa.Array, place: str, problems: list[str], warnings: list[str]
) -> None:
    """Adds rows without exactly one label per word to the problems, and spans that begin with I- to the warnings."""
    counts = [pc.list_value_length(column) for column in (words, labels)]
    wrong = pc.not_equal(*counts).fill_null(False)
    for row in pc.indices_nonzero(wrong).to_pylist()[:MAX_EXAMPLES]:
        numbers = " and ".join(f"{count[row]} {what}" for count, what in zip(counts, ("words", "labels"), strict=True))
        problems.append(f"{place}: row {row} has {numbers}. Give one label for each word")
    inside = [row is not None and begins_inside([task.labels[k] for k in row]) for row in labels.to_pylist()]
    if any(inside):
        warnings.append(f"{place}: a span begins with I- in {row_numbers(pa.array(inside))}. It counts as one with B-")


READERS = {"classification": labels, "multilabel": label_lists, "regression": scores, "token_labels": word_labels}


def split_words(column: pa.Array) -> pa.Array:
    """Returns the words of texts, which may also be lists. A text without words has an empty list."""
    if not pa.types.is_string(column.type):
        return column
    given = column.drop_null().to_pylist()
    if given and all(text.startswith("[") for text in given):
        lists = [None if text is None else list_in_text(text) for text in column.to_pylist()]
        kinds = {type(word) for words in lists for word in words or ()}
        if lists.count(None) == column.null_count and kinds in ({str}, {int}):
            return pa.array(lists)
    texts = pc.utf8_trim_whitespace(column)
    words = pc.utf8_split_whitespace(texts)
    return pc.if_else(pc.equal(texts, ""), pa.scalar([], words.type), words)


def alike(labels: Sequence[str]) -> list[str]:
    """Returns pairs of labels that differ only in Unicode form, capitals, spaces around them or a point at the end."""
    first: dict[str, str] = {}
    pairs = []
    for label in labels:
        key = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
        other = first.setdefault(key.strip().removesuffix(".").strip(), label)
        pairs += [f"{other!a} and {label!a}"] if other != label else []
    return pairs


def _numbered(
    task: Task, lists: Sequence[list[Any] | None], place: str, problems: list[str]
) -> Sequence[list[int] | None]:
    """Returns lists of labels as numbers. If a label is wrong, returns no list and adds to the problems."""
    numbers = _label_numbers(task)
    wrong = dict.fromkeys(item for row in lists for item in row or () if not _is_known(item, numbers))
    for item in list(wrong)[:MAX_EXAMPLES]:
        rows = row_numbers(pa.array([item in (row or ()) for row in lists]))
        problems.append(f"{place}: label {item!r} in {rows} {_not_a_label(task, item)}")
    if wrong:
        return [None] * len(lists)
    return [None if row is None else [numbers[item] for item in row] for row in lists]


def _is_no_gold(task: Task, value: Any) -> bool:
    """Returns whether a value means that there is no gold, and is no label."""
    small = value.strip().lower() if isinstance(value, str) else value
    return value not in _label_numbers(task) and (small in NO_GOLD or small in MINUS_ONE)


def _without_no_gold(task: Task, lists: pa.Array) -> list[list[Any] | None]:
    """Returns lists of labels, and None for those of -1 alone, which has no gold in the test files of many tasks."""
    rows = lists.to_pylist()
    return [None if row and all(item in MINUS_ONE and _is_no_gold(task, item) for item in row) else row for row in rows]


def _label_numbers(task: Task) -> dict[Any, int]:
    """Returns the accepted spellings of labels: names and numbers.

    If names are numerals, only names, also as numbers.
    """
    names = {name: number for number, name in enumerate(task.labels)}
    numerals: dict[Any, int] = {
        float(name) if "." in name else int(name): number for name, number in names.items() if NUMERAL.fullmatch(name)
    }
    return (numerals or {key: n for n in range(len(task.labels)) for key in (n, str(n))}) | names


def _not_a_label(task: Task, value: Any) -> str:
    """Returns the problem of a value that is not a label, with the label that it resembles."""
    numbered = ", ".join(f"{number}={name}" for number, name in enumerate(task.labels))
    close = get_close_matches(value, task.labels, n=1) if isinstance(value, str) else []
    meant = f". Did you mean {close[0]!r}?" if close else ""
    return f"is neither a name nor a number of the task's labels ({numbered}){meant}"


def _as_written(label: Any) -> str:
    """Returns a label as its author wrote it, because integers become floats if some are missing."""
    return f"{label:g}" if isinstance(label, float) else repr(label)


def _split(task: Task, text: str) -> list[Any]:
    listed = list_in_text(text)
    if listed is not None:
        return listed
    return [name.strip() for name in text.split(task.label_separator)] if text.strip() else []


def list_in_text(text: str) -> list[Any] | None:
    """Returns the list in a text, in JSON or as Python prints it (pandas does in CSV), or None if it is not a list."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _flags_of_labels(task: Task, lists: Sequence[list[Any] | None]) -> list[list[int] | None] | None:
    """Returns lists with 0 or 1 for each label as lists of numbers, or None if a list has other values."""
    if any(_spelt(name) in YES_OR_NO.keys() - NO_GOLD.keys() for name in task.labels) or all(
        row is None for row in lists
    ):
        return None
    flags: list[list[int] | None] = []
    for row in lists:
        found = None if row is None else [YES_OR_NO.get(_spelt(item)) for item in row]
        if found is not None and (len(found) != len(task.labels) or None in found):
            return None
        flags.append(None if found is None else [int(flag or 0) for flag in found])
    return flags


def _whole(value: Any) -> Any:
    """Returns "1" for a text such as "1.0". Other texts do not change."""
    match = WHOLE.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else match[1]


def _spelling(task: Task, value: Any, numbers: dict[Any, int | None]) -> Any:
    """Returns the label that matches a text without regard to case and spaces.

    Marks of missing gold get small letters.
    """
    if not isinstance(value, str) or value in numbers:
        return value
    small = value.strip().lower()
    names = [name for name in task.labels if name.lower() == small]
    if len(names) == 1:
        return names[0]
    return small if small in MISSING or (not names and small in numbers) else value


def _name_of_boolean(task: Task, value: Any) -> Any:
    """Returns the label with the name of a boolean.

    If there is none, returns the boolean itself, which is not a label.
    """
    return next((name for name in task.labels if name.lower() == str(value).lower()), value)


def _repeats_a_number(task: Task, row: Sequence[Any]) -> bool:
    numbers = [item for item in row if item not in task.labels]
    return any(numbers.count(number) > 1 for number in numbers)


def _is_known(item: Any, numbers: dict[Any, int]) -> bool:
    return isinstance(item, Hashable) and not isinstance(item, bool) and item in numbers


def _spelt(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return None if value is None else _whole(value.strip().lower())
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()
