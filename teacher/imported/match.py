"""Matches answers to the rows of a task by split and source row, or by text, and never by position.

Shapes: A answers, M rows of logits of a split, C logits.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Ints
from pipeline.errors import DataError, raise_all
from pipeline.sources import Source
from pipeline.sources.columns import plain_table, text_column
from pipeline.sources.source import word_column
from pipeline.tasks.task import Task
from teacher.imported.answer_rows import Answers

KEYS = ("split", "source_row")
Text = str | tuple[str, ...]  # a sentence, or the words of a labelled one


@dataclass(frozen=True)
class Matched:
    """The logits of a split in float32, and the rows that they belong to, ascending.

    A labelled sentence has a row of logits for each word.
    """

    source_row_M: Ints
    logits_MC: Floats


def match(answers: Answers, place: str, task: Task, source: Source) -> tuple[dict[str, Matched], int]:
    """Returns the rows of each split with an answer, and the number of answers without a row of the task.

    Raises:
        DataError: if the file has neither keys nor texts, if a key or a text has two answers, if a text differs from
            that of the row with its key, or if no answer belongs to a row of the task.
    """
    table = plain_table(answers.table)  # Arrow cannot select rows of every other type
    rows, by_key = table.take(pa.array(answers.row_A)), all(k in answers.table.column_names for k in KEYS)
    texts = _texts_of(rows, place, task, is_needed=not by_key)
    keys: Sequence[Hashable]
    if by_key:
        keys = _keys(rows, place, answers.row_A)
        if texts is not None:
            # Keys of another version of the data would match silently, so texts are compared wherever both exist.
            _check_texts(keys, texts, place, answers.row_A, source)
    else:
        assert texts is not None, "asked for"
        keys = texts
    answer_of = _one_answer_each(keys, answers, place)
    matched, used = {}, set[int]()
    for split, split_rows in source.splits.items():
        wanted = [(split, row) for row in range(split_rows.num_rows)] if by_key else _sentences(split_rows)
        found = [(row, answer_of[key]) for row, key in enumerate(wanted) if key in answer_of]
        used.update(a for _, a in found)
        if task.type == "token_labels":
            _check_words(found, split, split_rows, answers, place)
        row_A, chosen_A = (np.array([pair[k] for pair in found], dtype=np.int64) for k in (0, 1))
        matched[split] = Matched(np.repeat(row_A, answers.words.lengths[chosen_A]), answers.logits(chosen_A))
    if not used:
        what = "keys" if by_key else "texts"
        raise DataError(
            f"{place}: none of its {len(keys):,} {what} is in {source.description}. Check that these are the same data"
        )
    return matched, len(answer_of) - len(used)


def _check_words(found: Sequence[tuple[int, int]], split: str, rows: pa.Table, answers: Answers, place: str) -> None:
    """Raises DataError if a labelled sentence has no answer, or not one for each of its words.

    A set of labelled words has all sentences of a split.
    """
    missing = rows.num_rows - len(found)
    problems = [f"{missing:,} sentences of {split!r} have no answer. Give one for each"] if found and missing else []
    words, counts = rows.column("sentence1").to_pylist(), answers.words.lengths
    problems += [
        f"row {answers.row_A[a]}: {counts[a]} answers to {len(words[row])} words. Give one for each word"
        for row, a in found
        if counts[a] != len(words[row])
    ]
    raise_all(DataError, place, problems)


def _sentences(rows: pa.Table) -> list[tuple[Text, str | None]]:
    first, second = (rows.column(name).to_pylist() for name in ("sentence1", "sentence2"))
    return [(tuple(text) if isinstance(text, list) else text, other) for text, other in zip(first, second, strict=True)]


def _texts_of(rows: pa.Table, place: str, task: Task, is_needed: bool) -> list[tuple[Text, str | None]] | None:
    """Returns the texts of rows with an answer, or None if the file has no texts and they are not needed."""
    columns, problems = dict[str, pa.Array](), list[str]()
    for name, own in (("sentence1", task.columns.sentence1), ("sentence2", task.columns.sentence2)):
        accepted = dict.fromkeys([*(own or ()), name])
        if own is None:
            columns[name] = pa.nulls(rows.num_rows, pa.string())
        elif is_needed or any(column in rows.column_names for column in accepted):
            read = word_column if task.type == "token_labels" else text_column
            columns[name] = read(rows, place, list(accepted), problems)
        else:
            return None
    if problems and is_needed:
        problems.append("Instead of texts, the columns split and source_row can identify the task's rows")
    raise_all(DataError, place, [problem.removeprefix(f"{place}: ") for problem in problems])
    return _sentences(pa.table(columns))


def _keys(rows: pa.Table, place: str, row_A: Ints) -> list[tuple[str, int]]:
    splits, numbers = (rows.column(name).to_pylist() for name in KEYS)
    keys, problems = [], []
    for row, split, number in zip(row_A.tolist(), splits, numbers, strict=True):
        try:
            keys.append((str(split), _as_integer(number)))
        except (TypeError, ValueError, OverflowError):
            problems.append(f"row {row}: source_row {number!r} is not a row's number")
    raise_all(DataError, place, problems)
    return keys


def _as_integer(number: Any) -> int:
    whole = int(number)
    # 3.0 is accepted because CSV readers make floats of columns with gaps. 3.5 is an error.
    if whole != float(number):
        raise ValueError
    return whole


def _check_texts(keys: Sequence[Any], texts: Sequence[Any], place: str, row_A: Ints, source: Source) -> None:
    own = {split: _sentences(rows) for split, rows in source.splits.items()}
    problems = [
        f"row {row}: its text differs from that of source row {number} of {split!r}: {text[0]!r}, there "
        f"{theirs[number][0]!r}"
        for row, (split, number), text in zip(row_A.tolist(), keys, texts, strict=True)
        if 0 <= number < len(theirs := own.get(split, [])) and theirs[number] != text
    ]
    raise_all(DataError, place, problems)


def _one_answer_each(keys: Sequence[Hashable], answers: Answers, place: str) -> dict[Hashable, int]:
    """Returns the answer to each key. The same answer may be repeated."""
    first, problems = dict[Hashable, int](), []
    for a, key in enumerate(keys):
        before = first.setdefault(key, a)
        # The same answer twice is harmless. Two different ones would make the result depend on their order.
        if before != a and not np.array_equal(answers.logits([before]), answers.logits([a])):
            rows = f"rows {answers.row_A[before]} and {answers.row_A[a]}"
            problems.append(f"{rows}: two answers to {key!r}. Keep one")
    raise_all(DataError, place, problems)
    return first
