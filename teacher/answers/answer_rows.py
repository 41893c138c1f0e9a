"""The predictions in a file for each of its rows, as logits in the task's order of labels.

A row's answer is a list of numbers, or an object from label to number; in CSV such a thing as JSON. A missing or empty
one says that the teacher did not answer. Shapes: N rows of the file, A of them with an answer, C logits.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.config import names_of
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.sources.columns import rows_in_words
from pipeline.sources.row_files import open_rows, reading
from pipeline.tasks.target import Target, make_target
from pipeline.tasks.task import Task
from pipeline.untrusted import parse_json
from teacher.answers.array_file import ENDINGS, read_arrays
from teacher.answers.import_settings import AnswersKind, ImportConfig
from teacher.models.label_order import label_places, stated_labels

MAX_FLOAT32 = float(np.finfo(np.float32).max)
FLOOR = 1e-6  # no probability is taken for less: its logarithm has to be a number
SLACK = 0.01  # that a sum of probabilities may be off by: rounded ones are common


@dataclass(frozen=True)
class Answers:
    """The answers of a file.

    Attributes:
        table: all that the file holds.
        kind: what its answers are.
        target: what the logits mean.
        labels: the order of labels in lists of numbers.
        row_A: rows of the file that have an answer, ascending.
        logits_AC: float32, their logits in the task's order.
        num_spread: how many of them did not name every label.
    """

    table: pa.Table
    kind: AnswersKind
    target: Target
    labels: tuple[str, ...]
    row_A: Ints
    logits_AC: Floats
    num_spread: int


MISSING: tuple[Any, ...] = (None, "", {})  # where a row has no answer


def read_answers(config: ImportConfig, task: Task) -> Answers:
    """Reads the answers of a file.

    Raises:
        ConfigError: if it is not plain which answers are meant, or they do not fit the task or the flags.
        DataError: if the file cannot be read or has no answers, or listing every answer that is wrong.
    """
    table, stated = _table(config)
    kind = _kind(config, table)
    target = _target(task, kind)
    labels = names_of_outputs(config, target, stated)
    if target.has_label_lists and config.rest == "spread":
        raise ConfigError("--rest spread: nothing is left to share out where each label has a probability of its own")
    with reading(config.file):  # a key of a Parquet struct that is no text is found now
        values = list(map(_parsed, table.column(kind).to_pylist()))
    row_A = np.array([row for row, value in enumerate(values) if value not in MISSING], dtype=np.int64)
    if not len(row_A):
        raise DataError(f"{config.file}: none of its {table.num_rows:,} rows has an answer in {kind!r}")
    numbers_AC, problems = _numbers([values[row] for row in row_A], labels, target)
    if target.has_label_lists:
        problems = wrong_multilabel(kind, numbers_AC, target.names) | problems
    elif kind != "score":
        problems = wrong_numbers(kind, numbers_AC, target.names, config.rest == "spread") | problems
    raise_all(DataError, str(config.file), [f"{rows}: {kind}: {what}" for what, rows in _by_problem(problems, row_A)])
    num_spread = int(np.isnan(numbers_AC).any(axis=1).sum())
    as_logits = to_logits_multilabel if target.has_label_lists else to_logits
    return Answers(table, kind, target, labels, row_A, as_logits(kind, numbers_AC), num_spread)


def _by_problem(problems: Mapping[int, str], row_A: Ints) -> list[tuple[str, str]]:
    """What is wrong with answers, each once, and the rows that it is wrong in: many have the same cause."""
    rows_of = defaultdict(list)
    for a in sorted(problems):
        rows_of[problems[a]].append(int(row_A[a]))
    return [(what, rows_in_words(rows)) for what, rows in rows_of.items()]


def _table(config: ImportConfig) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows of a file, and the names of the outputs if it has them."""
    if config.file.suffix.lower() in ENDINGS:
        return read_arrays(config.file)
    return open_rows(config.file).table(), ()


def names_of_outputs(config: ImportConfig, target: Target, of_file: tuple[str, ...]) -> tuple[str, ...]:
    """The order of labels in lists of numbers: by ``--teacher-labels``, else as the file names them, or the task's.

    Raises:
        ConfigError: if the given labels are not the task's.
    """
    stated = names_of(config.teacher_labels)
    if not stated and not of_file:
        return target.names
    if not target.has_labels:
        raise ConfigError(f"--teacher-labels: the answers are {target.type.meaning}, not labels")
    if stated:
        return stated_labels(stated, target.names)
    places = label_places(of_file, target.names)
    if places is None:
        raise ConfigError(
            f"{config.file}: names its outputs {', '.join(of_file)}, but the task's labels are "
            f"{', '.join(target.names)}; if they are the same in other words, give their order with --teacher-labels"
        )
    return tuple(target.names[place] for place in places)


def _kind(config: ImportConfig, table: pa.Table) -> AnswersKind:
    known = get_args(AnswersKind)
    there = [name for name in known if name in table.column_names]
    if config.answers is not None and config.answers not in there:
        advice = did_you_mean(config.answers, table.column_names)
        raise ConfigError(f"--answers {config.answers}: {config.file} has no such column. {advice}")
    if config.answers is None and len(there) != 1:
        found = " and ".join(there) if there else f"none; its columns are {', '.join(table.column_names)}"
        advice = "say with --answers which one counts" if there else "rename the one with the answers"
        raise ConfigError(f"{config.file}: of the columns {', '.join(known)} it has {found}; {advice}")
    return config.answers or there[0]


def _target(task: Task, kind: AnswersKind) -> Target:
    if kind == "score" and task.type != "regression":
        raise ConfigError(
            f"score: task {task.name!r} has labels ({', '.join(task.labels)}). Give probabilities, of each label one."
        )
    return make_target(task, "classification" if kind != "score" else "regression")


def _numbers(values: Sequence[Any], labels: tuple[str, ...], target: Target) -> tuple[Floats64, dict[int, str]]:
    """Numbers in the task's order, NaN where an answer does not name a label; and what is wrong with which."""
    order = label_places(target.names, labels)
    assert order is not None, "the names of the outputs were checked"
    numbers_AC, problems = np.full((len(values), len(labels)), np.nan), {}
    for a, value in enumerate(values):
        try:
            if isinstance(value, ValueError):
                raise value
            if isinstance(value, Mapping):
                for name, number in value.items():
                    place = _place(str(name), target)
                    if not np.isnan(numbers_AC[a, place]):
                        raise ValueError(f"label {target.names[place]!r} is named twice, in two spellings")
                    numbers_AC[a, place] = _number(number)
            else:
                numbers_AC[a] = _list(value, labels)[list(order)]
        except ValueError as error:
            problems[a] = str(error)
    return numbers_AC, problems


def _parsed(value: Any) -> Any:
    """A list of numbers, or a mapping without its nulls, which is how Arrow represents a missing key.

    What is no answer is among `MISSING`, and what cannot be read the error.
    """
    try:
        answer = parse_json(value) if isinstance(value, str) and value else value
    except ValueError as error:
        return error
    if answer in MISSING:
        return answer
    if isinstance(answer, list) and answer and isinstance(answer[0], tuple):
        answer = dict(answer)  # Arrow's maps
    if isinstance(answer, Mapping):
        return {name: number for name, number in answer.items() if number is not None}
    return answer if isinstance(answer, list) else [answer]


def _list(answer: list[Any], labels: tuple[str, ...]) -> Floats64:
    if len(answer) != len(labels):
        raise ValueError(f"{len(answer)} numbers, but there are {len(labels)} ({', '.join(labels)})")
    return np.array([_number(number) for number in answer])


def _place(name: str, target: Target) -> int:
    for spelling in (str, str.lower):
        places = [number for number, label in enumerate(target.names) if spelling(label) == spelling(name)]
        if len(places) == 1:
            return places[0]
    raise ValueError(f"unknown label {name!r}. {did_you_mean(name, target.names)}")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    if not abs(value) <= MAX_FLOAT32:
        raise ValueError(f"{value} is not a finite number")
    return float(value)


def wrong_numbers(kind: AnswersKind, numbers_AC: Floats64, names: Sequence[str], may_spread: bool) -> dict[int, str]:
    """What is wrong with answers that are numbers, by their place.

    Args:
        kind: what they are; no score.
        numbers_AC: as they were given, NaN where a label is not named.
        names: the labels.
        may_spread: whether probabilities may leave labels out.
    """
    wrong = {a: _gap(kind, names, numbers_AC[a]) for a in np.flatnonzero(np.isnan(numbers_AC).any(axis=1)).tolist()}
    if kind == "logits":
        return wrong
    probability_AC = np.exp(numbers_AC.clip(max=1)) if kind == "logprobs" else numbers_AC
    sum_A, is_complete_A = np.nansum(probability_AC, axis=1), ~np.isnan(numbers_AC).any(axis=1)
    is_outside_A = ((probability_AC < 0) | (probability_AC > 1 + SLACK)).any(axis=1)
    is_short_A = is_complete_A & (sum_A < 1 - SLACK) & (kind == "probabilities")
    odd = {
        a: f"{numbers_AC[a].tolist()} are no {kind}: as probabilities they add up to {sum_A[a]:.4g}"
        for a in np.flatnonzero(is_outside_A | is_short_A | (sum_A > 1 + SLACK)).tolist()
    }
    return odd if may_spread else wrong | odd


def wrong_multilabel(kind: AnswersKind, numbers_AC: Floats64, names: Sequence[str]) -> dict[int, str]:
    """The same of answers to each label by itself, whose probabilities need not add up to anything."""
    wrong = {}
    for a in np.flatnonzero(np.isnan(numbers_AC).any(axis=1)).tolist():
        missing = [name for name, number in zip(names, numbers_AC[a], strict=True) if np.isnan(number)]
        wrong[a] = f"nothing of {', '.join(missing)}; say of each label whether it holds"
    low, high = {"logits": (-np.inf, np.inf), "probabilities": (0, 1), "logprobs": (-np.inf, 0)}[kind]
    for a in np.flatnonzero(((numbers_AC < low) | (numbers_AC > high)).any(axis=1)).tolist():
        wrong[a] = f"{numbers_AC[a].tolist()} are no {kind}: each lies between {low:g} and {high:g}"
    return wrong


def _gap(kind: AnswersKind, names: Sequence[str], numbers_C: Floats64) -> str:
    missing = ", ".join(name for name, number in zip(names, numbers_C, strict=True) if np.isnan(number))
    if kind == "logits":
        return f"nothing of {missing}, and the logits of others do not tell"
    return f"nothing of {missing}; --rest spread shares out what is left of 1 among them"


def to_logits(kind: AnswersKind, numbers_AC: Floats64) -> Floats:
    """Logits as they are, or those whose softmax are the probabilities; labels not named share what is left of 1.

    Args:
        kind: what the numbers are.
        numbers_AC: as `wrong_numbers` lets them through.

    Returns:
        logits_AC: float32; of probabilities their logarithms, none below that of `FLOOR`.
    """
    if kind in ("logits", "score"):
        return numbers_AC.astype(np.float32)
    is_missing_AC = np.isnan(numbers_AC)
    if kind == "logprobs":
        is_complete_A1 = ~is_missing_AC.any(axis=1, keepdims=True)
        likeliest_A1 = np.nanmax(numbers_AC, axis=1, keepdims=True)
        # where all labels are unlikely, as other words were likelier, what counts is how they compare
        numbers_AC = np.exp(numbers_AC - np.where(is_complete_A1, likeliest_A1, 0))
    left_A1 = (1 - np.nansum(numbers_AC, axis=1, keepdims=True)).clip(min=0)
    share_A1 = left_A1 / is_missing_AC.sum(axis=1, keepdims=True).clip(min=1)
    probability_AC = np.where(is_missing_AC, share_A1, numbers_AC)
    probability_AC /= probability_AC.sum(axis=1, keepdims=True)
    return np.asarray(np.log(probability_AC.clip(min=FLOOR)), dtype=np.float32)


def to_logits_multilabel(kind: AnswersKind, numbers_AC: Floats64) -> Floats:
    """The same of labels apart: logits whose sigmoid are the probabilities, none nearer to 0 or 1 than `FLOOR`."""
    if kind == "logits":
        return numbers_AC.astype(np.float32)
    probability_AC = (np.exp(numbers_AC) if kind == "logprobs" else numbers_AC).clip(FLOOR, 1 - FLOOR)
    return np.asarray(np.log(probability_AC) - np.log1p(-probability_AC), dtype=np.float32)
