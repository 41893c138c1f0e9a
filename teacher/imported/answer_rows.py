"""Reads the predictions in a file, and converts them to logits in the task's order of labels.

A row's answer is a list of numbers, an object from label to number, or a label. For labelled words, it is a list with
such an answer for each word. CSV contains lists and objects as JSON. A missing or empty answer means that the teacher
did not answer. NumPy's files contain named arrays with the answers and with their rows.

Shapes: N rows of the file, A of them with an answer, W rows of logits, C logits.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats, Floats64, Ints, Ragged
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.files import refuse_lfs_pointer
from pipeline.parsing import names_of
from pipeline.sources.columns import plain, rows_in_words
from pipeline.sources.gold import READERS as LABEL_READERS
from pipeline.sources.row_files import open_rows, reading
from pipeline.tasks.target import SUM_TOLERANCE, Target, make_target
from pipeline.tasks.task import Task
from pipeline.untrusted import parse_json
from teacher.imported.import_settings import AnswersFile, AnswersKind
from teacher.models.label_order import label_places, stated_labels

FLOOR = 1e-6  # smallest probability, because its logarithm must be finite
MISSING: tuple[Any, ...] = (None, "", {})  # values of a row without an answer
ALIASES = {"label": "labels", "probabilities": "scores"}  # other usual names of columns with answers

ENDINGS = (".npz", ".npy")
LABELS = "labels"  # the array with the names of the outputs, in their order
HOW = "np.savez(FILE, logits=LOGITS, split='validation', source_row=np.arange(len(LOGITS)), labels=NAMES)"


def read_arrays(path: Path) -> tuple[pa.Table, tuple[str, ...]]:
    """Returns the arrays of a file as a table with a row per answer, and the labels in the file, if it has them.

    A ``.npz`` has an array for each column, in which a single value applies to all rows. A ``.npy`` is one array with a
    field for each column. Nothing is read with pickle.

    Raises:
        DataError: if the file cannot be read, its arrays have no names, or are not of one length.
    """
    arrays = _arrays(path)
    labels = tuple(map(str, _texts(path, LABELS, arrays.pop(LABELS)).tolist())) if LABELS in arrays else ()
    lengths = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
        raise DataError(f"{path}: its arrays have different lengths: {found}. Each needs a row for each answer")
    (num_rows,) = set(lengths.values())
    return pa.table({name: _column(path, name, array, num_rows) for name, array in arrays.items()}), labels


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    refuse_lfs_pointer(path)
    try:
        with path.open("rb") as stream:
            # The file may be untrusted, and a pickled array can run any code.
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, BadZipFile, KeyError, MemoryError) as error:
        advice = "Save texts with np.array(TEXTS, dtype=str)" if "allow_pickle" in str(error) else "Save it again"
        raise DataError(f"{path}: not a readable {path.suffix[1:].lower()} file: {error}. {advice}") from error
    if loaded.dtype.names is None:
        raise DataError(f"{path}: is one array without names, so its rows are unknown. Save it with {HOW}")
    return {name: loaded[name] for name in loaded.dtype.names}


def _column(path: Path, name: str, array: npt.NDArray[Any], num_rows: int) -> pa.Array:
    """Returns an array as a column, of lists if it has two dimensions."""
    if array.dtype.kind in "US":
        array = _texts(path, name, array)
    elif array.dtype.kind not in "biuf" or array.ndim > 2:
        raise DataError(
            f"{path}: the array {name!r} has {array.ndim} dimensions of {array.dtype} and is not a column of rows"
        )
    # Arrow's Parquet and DuckDB support float16 only in part.
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if array.ndim == 0:
        return pa.array(np.full(num_rows, array).tolist())
    if array.ndim == 1:
        return pa.array(array.tolist())
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).ravel()), array.shape[1])


def _texts(path: Path, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "US" or array.ndim > 1:
        raise DataError(
            f"{path}: the array {name!r} has {array.ndim} dimensions of {array.dtype} and is not a row of texts"
        )
    try:
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the array {name!r} is not UTF-8: {error}") from error


MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Answers:
    """The answers of a file.

    Attributes:
        table: the content of the file.
        kind: the kind of its answers. Labels are probabilities of 1.
        target: the meaning of the logits.
        labels: the order of labels in lists of numbers.
        row_A: rows of the file with an answer, ascending.
        words: for each answer, the rows of its logits: one, or one for each labelled word.
        logits_WC: float32, the logits of all answers in the task's order.
        num_spread: how many answers did not name every label.
    """

    table: pa.Table
    kind: AnswersKind
    target: Target
    labels: tuple[str, ...]
    row_A: Ints
    words: Ragged
    logits_WC: Floats
    num_spread: int

    def logits(self, answers: Sequence[int] | Ints) -> Floats:
        """Returns the logits of some answers [W, C], one answer after the other."""
        return self.logits_WC[self.words.take(answers).flat]


def read_answers(config: AnswersFile, task: Task) -> Answers:
    """Reads the answers of a file.

    Raises:
        ConfigError: if the kind of answers is ambiguous, or does not fit the task or the flags.
        DataError: if the file cannot be read or has no answers, or listing every wrong answer.
    """
    is_numpy = config.file.suffix.lower() in ENDINGS
    table, stated = read_arrays(config.file) if is_numpy else (open_rows(config.file).table(), ())
    renamed = {other: name for name, other in ALIASES.items() if name not in table.column_names}
    table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
    kind = _kind(config, table, task)
    target = make_target(task, "classification" if kind != "score" else "regression")
    labels = names_of_outputs(config, target, stated)
    if target.has_label_lists and config.rest == "spread":
        raise ConfigError(
            "--rest spread: each label has its own probability, so there is no remaining probability to spread"
        )
    with reading(config.file):  # the first access fails if a key of a Parquet struct is not text
        column = table.column(kind)
        values = _one_hot(column, task, config.file) if kind == "label" else list(map(_parsed, column.to_pylist()))
    row_A = np.array([row for row, value in enumerate(values) if value not in MISSING], dtype=np.int64)
    if not len(row_A):
        raise DataError(f"{config.file}: none of its {table.num_rows:,} rows has an answer in {kind!r}")
    given = [values[row] for row in row_A]
    words = Ragged(np.arange(len(given)), np.arange(len(given) + 1))
    if task.type == "token_labels":
        given, words = _by_word(given)
    row_W = np.repeat(row_A, words.lengths)
    numbers_WC, problems = _numbers(given, labels, target)
    if target.has_label_lists:
        problems = wrong_multilabel(kind, numbers_WC, target.names) | problems
    elif kind != "score":
        problems = wrong_numbers(kind, numbers_WC, target.names, config.rest == "spread") | problems
    raise_all(DataError, str(config.file), [f"{rows}: {kind}: {what}" for what, rows in _by_problem(problems, row_W)])
    num_spread = int(np.isnan(numbers_WC).any(axis=1).sum())
    as_logits = to_logits_multilabel if target.has_label_lists else to_logits
    return Answers(table, kind, target, labels, row_A, words, as_logits(kind, numbers_WC), num_spread)


def _by_word(answers: Sequence[Any]) -> tuple[list[Any], Ragged]:
    """Returns the answers to labelled words, and for each sentence their numbers."""
    lists = [answer if isinstance(answer, list) else [answer] for answer in answers]
    by_word = [one if isinstance(one, ValueError) else _parsed(one) for one in chain.from_iterable(lists)]
    offsets = np.concatenate([[0], np.cumsum(list(map(len, lists)), dtype=np.int64)])
    nothing = ValueError("a word has no answer")
    return [nothing if one in MISSING else one for one in by_word], Ragged(np.arange(offsets[-1]), offsets)


def _one_hot(column: pa.ChunkedArray, task: Task, file: Path) -> list[Any]:
    """Returns 1 for each label of a row or word and 0 for the others, or None for a row without an answer."""
    problems: list[str] = []
    labels = LABEL_READERS[task.type](task, plain(column), str(file), problems)
    problems = [problem.removeprefix(f"{file}: ") for problem in problems]
    raise_all(DataError, f"{file}: answers to correct, or to leave empty (null)", problems)
    if task.type == "token_labels":
        one_hot = np.eye(len(task.labels))
        return [None if row is None else one_hot[row].tolist() for row in labels.to_pylist()]
    rows = [row if row is None or isinstance(row, list) else [row] for row in labels.to_pylist()]
    return [None if row is None else [float(label in row) for label in range(len(task.labels))] for row in rows]


def _by_problem(problems: Mapping[int, str], row_A: Ints) -> list[tuple[str, str]]:
    """Returns each problem of the answers once with its rows, because many rows share a cause."""
    rows_of = defaultdict(list)
    for a in sorted(problems):
        rows_of[problems[a]].append(int(row_A[a]))
    return [(what, rows_in_words(rows)) for what, rows in rows_of.items()]


def names_of_outputs(config: AnswersFile, target: Target, of_file: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the label order of lists of numbers: that of ``--teacher-labels``, of the file, or of the task."""
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
            f"{', '.join(target.names)}. If they mean the same, give their order with --teacher-labels"
        )
    return tuple(target.names[place] for place in places)


def _kind(config: AnswersFile, table: pa.Table, task: Task) -> AnswersKind:
    known = get_args(AnswersKind)
    there = [name for name in known if name in table.column_names]
    if config.answers is not None and config.answers not in there:
        advice = did_you_mean(config.answers, table.column_names)
        raise ConfigError(f"--answers {config.answers}: {config.file} has no such column. {advice}")
    unfit = "label" if task.type == "regression" else "score"
    fitting = [name for name in there if name != unfit] or there
    # A label contains less than numbers, and may be gold.
    fitting = [name for name in fitting if name != "label"] or fitting
    if config.answers is None and len(fitting) != 1:
        found = " and ".join(there) if there else f"none. Its columns are {', '.join(table.column_names)}"
        advice = "Choose one with --answers" if there else "Rename the one with the answers"
        raise ConfigError(f"{config.file}: of the columns {', '.join(known)} it has {found}. {advice}")
    kind: AnswersKind = config.answers or fitting[0]
    if kind == unfit:
        has = "scores. Give a number in a column `score`"
        if unfit == "score":
            has = f"labels ({', '.join(task.labels)}). Give a column `label`, or `probabilities` by label"
        raise ConfigError(f"{config.file}: {kind!r} is not for task {task.name!r}, which has {has}.")
    if (kind, unfit) == ("label", "score") and "score" in there:
        example = json.dumps({"probabilities": {task.labels[0]: 0.9}})
        console.warn(f"{config.file}: `score` is ignored. To use it, write {example}, and add --rest spread")
    return kind


def _numbers(values: Sequence[Any], labels: tuple[str, ...], target: Target) -> tuple[Floats64, dict[int, str]]:
    """Returns numbers in the task's order, with NaN for missing labels, and the problems by answer."""
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
                        raise ValueError(f"label {target.names[place]!r} is repeated in two spellings")
                    numbers_AC[a, place] = _number(number)
            elif len(value) != len(labels):
                raise ValueError(f"{len(value)} numbers, but there are {len(labels)} ({', '.join(labels)})")
            else:
                numbers_AC[a] = np.array([_number(number) for number in value])[list(order)]
        except ValueError as error:
            problems[a] = str(error)
    return numbers_AC, problems


def _parsed(value: Any) -> Any:
    """Returns a list of numbers, or a mapping without its nulls, by which Arrow represents missing keys.

    Returns a value of `MISSING` if there is no answer, and the error if it cannot be read.
    """
    try:
        answer = parse_json(value) if isinstance(value, str) and value else value
    except ValueError as error:
        advice = "If these are labels, name the column `label`"
        return ValueError(
            f"{value[:60]!r} is neither a list of numbers nor an object from label to number: {error}. {advice}"
        )
    if answer in MISSING:
        return answer
    if isinstance(answer, list) and answer and isinstance(answer[0], tuple):
        answer = dict(answer)  # Arrow's maps
    if isinstance(answer, Mapping):
        return {name: number for name, number in answer.items() if number is not None}
    return answer if isinstance(answer, list) else [answer]


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
    """Returns the problems of answers that are numbers, by their position. The kind is not a score."""
    wrong = {a: _gap(kind, names, numbers_AC[a]) for a in np.flatnonzero(np.isnan(numbers_AC).any(axis=1)).tolist()}
    if kind == "logits":
        return wrong
    probability_AC = np.exp(numbers_AC.clip(max=1)) if kind == "logprobs" else numbers_AC
    sum_A, is_complete_A = np.nansum(probability_AC, axis=1), ~np.isnan(numbers_AC).any(axis=1)
    is_outside_A = ((probability_AC < 0) | (probability_AC > 1 + SUM_TOLERANCE)).any(axis=1)
    is_short_A = is_complete_A & (sum_A < 1 - SUM_TOLERANCE) & (kind == "probabilities")
    odd = {
        a: f"{numbers_AC[a].tolist()} are not {kind}: as probabilities they add up to {sum_A[a]:.4g}. "
        "If they are other scores, name the column `logits`"
        for a in np.flatnonzero(is_outside_A | is_short_A | (sum_A > 1 + SUM_TOLERANCE)).tolist()
    }
    return odd if may_spread else wrong | odd


def wrong_multilabel(kind: AnswersKind, numbers_AC: Floats64, names: Sequence[str]) -> dict[int, str]:
    """Returns the problems of answers to independent labels, whose probabilities need not add up to 1."""
    wrong = {}
    for a in np.flatnonzero(np.isnan(numbers_AC).any(axis=1)).tolist():
        missing = [name for name, number in zip(names, numbers_AC[a], strict=True) if np.isnan(number)]
        wrong[a] = f"no number for {', '.join(missing)}. Every label needs one"
    low, high = {"logits": (-np.inf, np.inf), "logprobs": (-np.inf, 0)}.get(kind, (0, 1))
    for a in np.flatnonzero(((numbers_AC < low) | (numbers_AC > high)).any(axis=1)).tolist():
        wrong[a] = f"{numbers_AC[a].tolist()} are not {kind}: each must be between {low:g} and {high:g}"
    return wrong


def _gap(kind: AnswersKind, names: Sequence[str], numbers_C: Floats64) -> str:
    missing = ", ".join(name for name, number in zip(names, numbers_C, strict=True) if np.isnan(number))
    if kind == "logits":
        return f"no number for {missing}, which cannot be computed from other logits"
    return f"no number for {missing}. Use --rest spread to divide the remaining probability among them"


def to_logits(kind: AnswersKind, numbers_AC: Floats64) -> Floats:
    """Returns logits unchanged, or those whose softmax are the probabilities. Missing labels share the rest of 1.

    Returns:
        logits_AC: float32. For probabilities, their logarithms, of at least that of `FLOOR`.
    """
    if kind in ("logits", "score"):
        return numbers_AC.astype(np.float32)
    is_missing_AC = np.isnan(numbers_AC)
    if kind == "logprobs":
        is_complete_A1 = ~is_missing_AC.any(axis=1, keepdims=True)
        likeliest_A1 = np.nanmax(numbers_AC, axis=1, keepdims=True)
        # all labels may be unlikely because other words were likelier, so only their ratios count
        numbers_AC = np.exp(numbers_AC - np.where(is_complete_A1, likeliest_A1, 0))
    left_A1 = (1 - np.nansum(numbers_AC, axis=1, keepdims=True)).clip(min=0)
    share_A1 = left_A1 / is_missing_AC.sum(axis=1, keepdims=True).clip(min=1)
    probability_AC = np.where(is_missing_AC, share_A1, numbers_AC)
    probability_AC /= probability_AC.sum(axis=1, keepdims=True)
    return np.asarray(np.log(probability_AC.clip(min=FLOOR)), dtype=np.float32)


def to_logits_multilabel(kind: AnswersKind, numbers_AC: Floats64) -> Floats:
    """Returns logits of independent labels, whose sigmoid are the probabilities, at most within `FLOOR` of 0 or 1."""
    if kind == "logits":
        return numbers_AC.astype(np.float32)
    probability_AC = (np.exp(numbers_AC) if kind == "logprobs" else numbers_AC).clip(FLOOR, 1 - FLOOR)
    return np.asarray(np.log(probability_AC) - np.log1p(-probability_AC), dtype=np.float32)
