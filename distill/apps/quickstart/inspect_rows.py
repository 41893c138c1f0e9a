"""Looks into a file of rows: its texts, its type of labels, and the oddities of both."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pipeline.arrays import Ints
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.sources.columns import blank, plain_table, rows_in_words, type_name
from pipeline.sources.gold import MINUS_ONE, MISSING, alike
from pipeline.sources.row_bytes import ending
from pipeline.sources.row_files import open_rows
from pipeline.tasks.task import Metric, TaskType
from pipeline.text.near_copies import (
    counted_groups,
    groups_of,
    groups_of_values,
    joined,
    near_copies,
    normalized_inputs,
)
from pipeline.text.same_input import plain_texts

# A column with more distinct whole numbers holds scores. A column with fewer rows per distinct word holds ids or texts.
MOST_GRADES, ROWS_PER_CLASS = 20, 5
FEWEST_ROWS = 50
# Balanced classes gained ten points of macro F1 on MRPC (67 % of one class), and cost one on QQP (62 %).
BALANCED_FROM = 0.65
FILE_ROW = "file_row"  # column with the number of a row in the user's file
SHOWN = 10  # number of labels that are printed by name


@dataclass(frozen=True)
class Look:
    """A file's rows with text and gold, and the findings about them.

    Attributes:
        type: of the task.
        texts: names of the columns of text, one or two.
        label: name of the column of labels.
        rows: the texts and the label of each row, as the manifest's task will read them, and the `kept` columns.
        labels: all labels in their order, empty for scores.
        score_range: the lowest and the highest score, or None for labels.
        findings: facts that a user should know, by name.
        kept: names of the columns by which a user finds a row again. The first is its number in the file, from 0.
        group_N: the number of each row's group, which stays in one split: near copies, or rows with the same value.
    """

    type: TaskType
    texts: tuple[str, ...]
    label: str
    rows: list[dict[str, Any]]
    labels: tuple[str, ...]
    score_range: tuple[float, float] | None
    findings: dict[str, str]
    kept: tuple[str, ...]
    group_N: Ints

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that fit the labels. With macro F1, rare classes count as much as frequent ones."""
        if self.type == "regression":
            return ("pearson", "spearmanr")
        if self.type == "multilabel":
            return ("micro_f1", "macro_f1")
        if self.type == "token_labels":
            return ("span_f1", "accuracy")
        return ("macro_f1", "accuracy") if self.is_skewed else ("accuracy", "macro_f1")

    @property
    def is_skewed(self) -> bool:
        """Whether one class has so many rows that always predicting it is hard to beat by accuracy."""
        return any(count >= BALANCED_FROM * len(self.rows) for count in self.class_counts.values())

    @property
    def class_counts(self) -> Counter[str]:
        """The number of rows of each class, empty for other tasks."""
        return Counter(row[self.label] for row in self.rows if self.type == "classification")

    def keys(self, rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
        """Returns the key of each row, which is equal for copies of an input. See `plain_texts`."""
        columns = (pa.array([row[name] for row in rows]) for name in self.texts)
        return list(zip(*(plain_texts(column).to_pylist() for column in columns), strict=True))

    def rows_unlike(self, others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows that are neither equal to any of others nor near copies of them."""
        known = set(self.keys(others))
        both = (joined(normalized_inputs(_sentences(part, self.texts))) for part in (self.rows, others))
        triples = zip(self.rows, self.keys(self.rows), near_copies(*both), strict=True)
        return [row for row, key, is_near in triples if not is_near and key not in known]


def look_at(
    file: Path, texts: Sequence[str], label: str, columns: Sequence[str] = (), group: str | None = None
) -> Look:
    """Reads a file and infers the type of its labels.

    Args:
        file: any file of rows.
        texts: names of the columns of text, one or two.
        label: name of the column of labels.
        columns: names of columns to keep.
        group: name of a column whose rows with the same value stay in one split. Default: near copies do.

    Raises:
        ConfigError: if there are no such columns.
        DataError: if a column has another type, or there are too few rows.
    """
    opened = open_rows(file)
    names = [*texts, label]
    kept = [name for name in dict.fromkeys(columns) if name not in (*names, FILE_ROW, group)]
    _check_columns(file, opened.names, texts, label, kept, group)
    kept += [] if group is None else [group]
    table = plain_table(opened.wanted([*names, *kept]).select([*names, *kept]))
    labels = _whole(_with_numbers(table.column(label).combine_chunks()))
    table = table.set_column(table.column_names.index(label), label, labels)
    kind = _type_of(file, table, texts, label)
    rows = [{FILE_ROW: number} | row for number, row in enumerate(table.to_pylist())]
    if kind in ("multilabel", "token_labels"):
        _refuse_other_than_names(file, rows, label)
    if kind == "token_labels":
        _refuse_unequal_lengths(file, rows, texts[0], label)
    blanks = zip(*(blank(table.column(name).combine_chunks()).to_pylist() for name in texts), strict=True)
    complete = [
        row
        for row, is_blank in zip(rows, blanks, strict=True)
        if not any(is_blank) and all(row[name] for name in texts) and _is_gold(row[label])
    ]
    if len(complete) < FEWEST_ROWS:
        raise DataError(
            f"{file}: {len(complete)} rows with text and label are too few. A student needs at least {FEWEST_ROWS}."
        )
    if kind == "classification":
        complete = [row | {label: _name(row[label])} for row in complete]
    label_names = _labels(file, kind, complete, label)
    scores = [float(row[label]) for row in complete] if kind == "regression" else []
    limits = (min(scores), max(scores)) if scores else None
    group_N = _group_numbers(complete, texts, group)
    look = Look(kind, tuple(texts), label, complete, label_names, limits, {}, (FILE_ROW, *kept), group_N)
    left_out = {row[FILE_ROW] for row in rows} - {row[FILE_ROW] for row in complete}
    return replace(look, findings=_findings(look, sorted(left_out), group))


def _refuse_unequal_lengths(file: Path, rows: list[dict[str, Any]], words: str, label: str) -> None:
    odd = [number for number, row in enumerate(rows) if _is_odd(row[words], row[label])]
    if odd:
        where = rows_in_words(odd)
        raise DataError(f"{file}: {words!r} and {label!r} differ in length in {where}. Give one label for each word.")


def _group_numbers(rows: list[dict[str, Any]], texts: Sequence[str], group: str | None) -> Ints:
    if group is not None:
        return groups_of_values(pa.array([row[group] for row in rows]))
    return groups_of(_sentences(rows, texts), divides_copies=False)


def _sentences(rows: Sequence[dict[str, Any]], texts: Sequence[str]) -> pa.Table:
    return pa.table({f"sentence{k}": pa.array([row[name] for row in rows]) for k, name in enumerate(texts, start=1)})


def _check_columns(
    file: Path, there: Sequence[str], texts: Sequence[str], label: str, kept: Sequence[str], group: str | None
) -> None:
    wanted = [*zip(("--text", "--text2"), texts, strict=False), ("--label", label)]
    missing = [(flag, name) for flag, name in wanted if name not in there]
    has_no_header = len(missing) == len(wanted) and ending(file) in (".csv", ".tsv")
    reason = ", perhaps because its first line does not name the columns" if has_no_header else ""
    missing += [("--columns", name) for name in kept if name not in there]
    missing += [("--group", group)] if group is not None and group not in there else []
    problems = [f"{flag} {name}: {did_you_mean(name, there)}" for flag, name in missing]
    raise_all(ConfigError, f"{file}: unknown columns{reason}", problems)
    names = [name for _, name in wanted]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"--text, --text2 and --label: {' and '.join(names)} are not different columns. Name a different column "
            "for each."
        )
    if group in names:
        raise ConfigError(f"--group {group}: is the column of texts or labels. Name another column.")


def with_scores_of(look: Look, file: Path) -> Look:
    """Widens the range of scores to those of another file; a look at labels stays as it is."""
    opened = open_rows(file)
    if look.score_range is None or look.label not in opened.names:
        return look
    column = plain_table(opened.wanted([look.label]).select([look.label])).column(0).combine_chunks()
    scores = [float(one) for one in _with_numbers(column).to_pylist() if isinstance(one, int | float) and _is_gold(one)]
    if all(score in MINUS_ONE for score in scores):  # no gold, as in GLUE's test files
        return look
    low, high = look.score_range
    return replace(look, score_range=(min([low, *scores]), max([high, *scores])))


def _with_numbers(labels: pa.Array) -> pa.Array:
    """Returns labels as numbers if all of them are numbers, because CSV and TSV have no types.

    Codes remain text: 01 is not a number, and 1.1 and 1.10 are two versions and not one number.
    """
    if not pt.is_string(labels.type):
        return labels
    trimmed = pc.utf8_trim_whitespace(labels)
    text = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
    try:
        numbers = text.cast(pa.float64())
    except pa.ArrowInvalid:
        return labels
    known = text.drop_null().unique()
    codes = [one for one in known.to_pylist() if re.match(r"[+-]?0\d", one)]
    is_code = bool(codes) or len(numbers.drop_null().unique()) < len(known)
    is_finite = pc.all(pc.is_finite(numbers.drop_null())).as_py()
    if is_code or not is_finite or not len(known):
        return labels
    return numbers


def _whole(labels: pa.Array) -> pa.Array:
    """Returns numbers without fractions as integers. pandas writes 0.0 and 1.0 where some labels are missing."""
    if not pt.is_floating(labels.type):
        return labels
    numbers = pc.if_else(pc.is_nan(labels), None, labels)
    fractions = pc.not_equal(numbers, pc.round(numbers))
    return labels if pc.any(fractions).as_py() else numbers.cast(pa.int64(), safe=False)


def _type_of(file: Path, table: pa.Table, texts: Sequence[str], label: str) -> TaskType:
    """Infers the type of the task from the types of the columns and the number of distinct values."""
    text, gold = table.schema.field(texts[0]).type, table.schema.field(label).type
    if _is_list(gold):
        if _is_list(text):
            return "token_labels"
        return "multilabel"
    if not all(_is_text(table.schema.field(name).type) for name in texts):
        wrong = next(name for name in texts if not _is_text(table.schema.field(name).type))
        raise DataError(f"{file}: column {wrong!r} is {type_name(table.schema.field(wrong).type)}, not text")
    if not (_is_text(gold) or pt.is_integer(gold) or pt.is_floating(gold) or pt.is_boolean(gold)):
        raise DataError(
            f"{file}: column {label!r} is {type_name(gold)}. Labels must be names, numbers, or lists of names."
        )
    values = table.column(label).drop_null()
    count = len(values.unique())
    if pt.is_floating(gold) or (pt.is_integer(gold) and count > MOST_GRADES):
        return "regression"
    if count * ROWS_PER_CLASS > len(values):
        raise DataError(
            f"{file}: column {label!r} has {count:,} distinct values in {len(values):,} rows, so it is not a "
            "label. Name the column of labels with --label."
        )
    return "classification"


def _is_gold(value: object) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return value is not None and not (isinstance(value, float) and isnan(value))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pt.is_list(type_) or pt.is_large_list(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_))


def _name(value: object) -> str:
    """Returns the name of a class in the manifest."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _refuse_other_than_names(file: Path, rows: list[dict[str, Any]], label: str) -> None:
    wrong = {k: one for k, row in enumerate(rows) for one in row[label] or () if not isinstance(one, str)}
    if wrong:
        first = next(iter(wrong.values()))
        what = "null" if first is None else f"{first!r:.80}"
        where = rows_in_words([k for k, one in wrong.items() if one == first])
        raise DataError(f"{file}: a list of column {label!r} holds {what} in {where}. Give lists of names of labels.")


def _is_odd(words: list[str] | None, labels: list[str] | None) -> bool:
    return words is not None and labels is not None and len(words) != len(labels)


def _labels(file: Path, kind: TaskType, rows: list[dict[str, Any]], label: str) -> tuple[str, ...]:
    if kind == "regression":
        return ()
    values = {one for row in rows for one in (row[label] if isinstance(row[label], list) else [row[label]])}
    if len(values) < 2:
        raise DataError(
            f"{file}: column {label!r} has only the value {values.pop()!r}. A student needs at least two labels."
        )
    # Sorted as numbers, and not as 1, 10, 2.
    return tuple(
        sorted(values, key=lambda one: (not one.lstrip("-").isdecimal(), len(one) if one.isdecimal() else 0, one))
    )


def _findings(look: Look, left_out: Sequence[int], group: str | None) -> dict[str, str]:
    """Returns facts about the rows that a user should see before anything is trained."""
    keys = look.keys(look.rows)
    found = {"rows": f"{len(look.rows):,}", "task": look.type}
    if left_out:
        found["left out"] = (
            f"{counted(len(left_out), 'row')} without text or label: {rows_in_words(left_out)} of the file"
        )
    if look.type == "classification":
        found |= _findings_of_classes(look, keys)
    elif look.score_range is not None:
        found["scores"] = "{:g} to {:g}".format(*look.score_range)
    else:
        found["labels"] = _first(look.labels)
    similar = alike(look.labels)
    if similar:
        found["similar labels"] = f"{_first(similar)}. If they are one label, give it one name in the file"
    unclear = [name for name in look.labels if name.lower() in MISSING]
    if unclear:
        found["labels or none?"] = f"{_first(unclear)}. If these rows have no label, empty the cells"
    repeated = len(keys) - len(set(keys))
    if repeated:
        found["repeated texts"] = counted(repeated, "row")
    num_groups = len(np.unique(look.group_N))
    if num_groups < len(look.rows):
        name = "near copies" if group is None else f"rows with an equal {group}"
        found[name] = f"{counted_groups(look.group_N)}. Each group stays in one split"
    lengths = sorted(sum(map(_num_words, key)) for key in keys)
    found["words"] = f"median {lengths[len(lengths) // 2]}, longest row {lengths[-1]}"
    return found


def _findings_of_classes(look: Look, keys: Sequence[tuple[str, ...]]) -> dict[str, str]:
    shares = [f"{name} {n / len(look.rows):.1%}" for name, n in look.class_counts.most_common()]
    found = {"classes": _first(shares)}
    if look.is_skewed:
        found["skewed"] = "one class has most rows. All classes count the same, and macro F1 chooses the best epoch"
    answers: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for key, row in zip(keys, look.rows, strict=True):
        answers[key].add(row[look.label])
    pairs = zip(keys, look.rows, strict=True)
    contradicting = [row[FILE_ROW] for key, row in pairs if len(answers[key]) > 1]
    if contradicting:
        count, where = sum(len(labels) > 1 for labels in answers.values()), rows_in_words(contradicting)
        found["contradictions"] = f"{counted(count, 'text')} with several labels: {where} of the file"
    return found


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _num_words(text: str) -> int:
    return len(re.findall(r"\w+", text))
