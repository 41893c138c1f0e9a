"""Measures each system of a task and stores the result in its own file, so that nothing is measured twice.

Shapes: N rows, C logits.
"""

import importlib.util
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from distill.apps.cells import content_sha256, run_once
from distill.apps.experiments.baselines import Baseline
from distill.apps.systems import (
    CHOSEN,
    SCORE,
    Rows,
    System,
    divided_rows,
    read_rows,
    read_trained_rows,
    student_system,
    teacher_system,
)
from distill.apps.timing import ROUNDS, fitting_rows, interleaved, using_threads
from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import DataError
from pipeline.files import atomic_path
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.intervals import ROUNDING
from pipeline.tasks.metrics import bootstrap_intervals, fidelity, score_logits
from pipeline.tasks.target import Target, predicted_scores
from pipeline.tasks.task import TRAIN, Metric, Task
from pipeline.training.batches import HELD_OUT

VERSION = 2  # increase it to measure all cells again
METRIC, FIDELITY = "metric", "fidelity"
LEAST_OF_KIND = 50  # rows
Cell = dict[str, Any]
Outputs = dict[str, list[Floats]]  # by split, the logits [N, C] of each seed
TURN_S = 0.25
MOST_ROWS = 1024
# Standard errors from so many resamples have a standard error of 5 %.
RESAMPLES = 200
SEED = 0
NEGATION = re.compile(r"\b(not|no|never|nor|none|nothing|nobody|neither|without|cannot)\b|n['\u2019]t\b", re.IGNORECASE)
WORD = re.compile(r"\w+")

# A number for some of the rows, from a system's logits [N, C] and the numbers of these rows.
Measure = Callable[[Floats, Ints], float]


class TaskCells:
    """The systems of a task, measured on its rows.

    Args:
        task: the task.
        logit_set: its first set, with rows, gold and the teacher's answers.
        taught: the set of the first student, with all rows that it learns from.
        reference: a run of the first student, that speeds are compared with. No baseline is fitted on the rows that it
            holds out, and those are scored like a split.
        folder: where the files are kept.

    Raises:
        DataError: if there are no rows to score.
    """

    def __init__(
        self,
        task: Task,
        logit_set: ExampleSet,
        taught: ExampleSet,
        reference: Path,
        folder: Path,
    ) -> None:
        self._task, self._set, self._taught_set = task, logit_set, taught
        self._reference, self._folder = reference, folder
        self._trained_N2, self._held_out_N = divided_rows(reference, taught)
        splits = {split: read_rows(logit_set, split) for split in logit_set.splits if split != TRAIN}
        splits[HELD_OUT] = read_rows(logit_set, TRAIN, self._held_out_N)
        self.splits = {split: rows for split, rows in splits.items() if len(rows)}
        if not self.splits:
            raise DataError(f"{logit_set.root}: no rows with gold to score on, neither dev rows nor held-out ones")

    @cached_property
    def gold(self) -> Rows:
        """The training rows with gold, without variants and held-out rows."""
        sources_N = self._set.read(TRAIN, ("source_row",), CHOSEN).column("source_row").to_numpy()
        return read_rows(self._set, TRAIN, np.setdiff1d(sources_N, self._held_out_N))

    @cached_property
    def taught(self) -> Rows:
        """The rows that the first student learns from."""
        return read_trained_rows(self._taught_set, self._trained_N2)

    def rows_for(self, baseline: Baseline) -> Rows:
        """Returns the rows to which a baseline is fitted."""
        return self.taught if baseline.from_teacher else self.gold

    def teacher(self, name: str, reads: Sequence[str | Path]) -> Cell:
        """Measures the teacher: its scores from the set, its speed by running it again."""

        def measure() -> tuple[Cell, Outputs]:
            outputs = {split: [rows.teacher_NC] for split, rows in self.splits.items()}
            system = teacher_system(self._task, name, self._set)
            return self._scored(system.target, outputs) | _size(system) | self._speed(system), outputs

        return self._measured_once("teacher", reads, measure)

    def student(self, name: str, runs: Sequence[Path], logit_set: ExampleSet, reads: Sequence[str | Path]) -> Cell:
        """Measures students of one kind with different seeds. Size and speed are those of the first seed.

        Args:
            name: under which the measurements are stored.
            runs: their folders.
            logit_set: the set that they learned from.
            reads: what the measurements depend on.
        """

        def measure() -> tuple[Cell, Outputs]:
            systems = [student_system(run) for run in runs]
            outputs = self._outputs(systems)
            # A student that holds out other rows has learned some of the first student's.
            if not np.array_equal(divided_rows(runs[0], logit_set)[1], self._held_out_N):
                outputs.pop(HELD_OUT, None)
            scored = self._scored(systems[0].target, outputs)
            return scored | _size(systems[0]) | self._speed(systems[0]), outputs

        return self._measured_once(name, reads, measure)

    def baseline(self, name: str, baseline: Baseline, vectors: Path, reads: Sequence[str | Path]) -> Cell:
        """A baseline, fitted on training rows with gold, or on all rows that the first student learns from."""

        def measure() -> tuple[Cell, Outputs]:
            train = self.rows_for(baseline)
            start = time.perf_counter()
            system = baseline.fit(train, self._set.record.target, vectors)
            seconds = time.perf_counter() - start
            outputs = self._outputs([system])
            timed = self._speed(system) if system.num_parameters else {}
            scored = self._scored(system.target, outputs) | _size(system)
            return scored | timed | {"training_seconds": [seconds]}, outputs

        keys = [content_sha256([str(self._trained_N2.tolist())])] if baseline.from_teacher else []
        return self._measured_once(name, [*reads, *keys], measure)

    def differences(self, name: str, reference: str) -> Cell:
        """Compares a measured system with another one on the same rows, by the first metric and by the teacher."""
        ours, theirs = self._stored(name), self._stored(reference)
        return {
            split: {
                title: asdict(difference(measure, ours[split], theirs[split]))
                for title, measure in self._measures(rows).items()
            }
            for split, rows in self.splits.items()
            if split in ours
        }

    def slices(self, names: Mapping[str, str]) -> Cell:
        """Measures how closely systems follow the teacher on kinds of rows of the largest split.

        Args:
            names: the names of measured systems, by those in the table.
        """
        split, rows = max(self.splits.items(), key=lambda item: len(item[1]))
        measure = self._measures(rows)[FIDELITY]
        among = {"all": np.arange(len(rows))}
        for kind, is_kind_N in kinds_of_rows(rows, self.taught).items():
            # The share of so few rows would be noise.
            if is_kind_N.sum() >= LEAST_OF_KIND:
                among[kind] = np.flatnonzero(is_kind_N)
        stored = {title: self._stored(name) for title, name in names.items()}
        return {
            "split": split,
            "rows": {kind: len(some) for kind, some in among.items()},
            "fidelity": {
                title: {
                    kind: float(np.mean([measure(logits_NC, some) for logits_NC in outputs[split]]))
                    for kind, some in among.items()
                }
                for title, outputs in stored.items()
                if split in outputs
            },
        }

    def _measures(self, rows: Rows) -> dict[str, Measure]:
        target = self._set.record.target
        return {METRIC: metric_of(self._task.metrics[0], target, rows), FIDELITY: fidelity_to(target, rows)}

    def _outputs(self, systems: Sequence[System]) -> Outputs:
        return {
            split: [system.logits(rows.texts1, rows.texts2) for system in systems]
            for split, rows in self.splits.items()
        }

    def _stored(self, name: str) -> dict[str, Floats]:
        """The logits of a measured system by split and seed, [K, N, C]."""
        with np.load(self._outputs_file(name), allow_pickle=False) as arrays:
            return dict(arrays)

    def _outputs_file(self, name: str) -> Path:
        return self._folder / f"{name}.npz"

    def _measured_once(
        self, name: str, reads: Sequence[str | Path], measure: Callable[[], tuple[Cell, Outputs]]
    ) -> Cell:
        """Returns what was measured before, or measures it and stores the outputs, with which others are compared."""
        # Content hashes instead of modification times: the measurements stay valid in a copied folder.
        settings = {
            "version": VERSION,
            "held_out": content_sha256([str(self._held_out_N.tolist())]),
            "reads": content_sha256(reads),
        }

        def run() -> Cell:
            cell, outputs = measure()
            arrays = {split: np.stack(seeds).astype(np.float32) for split, seeds in outputs.items()}
            with atomic_path(self._outputs_file(name)) as path, path.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            return cell

        return run_once(self._folder / f"{name}.json", settings, run, [self._outputs_file(name)])

    def _scored(self, target: Target, outputs: Outputs) -> Cell:
        """Scores by split, with a value for each seed of ``outputs``."""
        metrics, teacher = self._task.metrics, self._set.record.target
        return {
            "splits": {
                split: [scores(metrics, target, logits_NC, teacher, self.splits[split]) for logits_NC in seeds]
                for split, seeds in outputs.items()
            }
        }

    def _speed(self, system: System) -> Cell:
        rows = next(iter(self.splits.values()))
        rate, reference = sentences_per_second(system, student_system(self._reference), rows)
        return {"sentences_per_second": rate, "times_default": rate / reference}


def _size(system: System) -> Cell:
    return {"parameters": system.num_parameters, "bytes": system.num_bytes}


def scores(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, teacher: Target, rows: Rows
) -> dict[str, Any]:
    """Scores a system's logits.

    Args:
        metrics: names of the task's metrics.
        target: what the system's logits mean.
        logits_NC: its logits for the rows.
        teacher: what the teacher's logits mean. They may be bins of scores.
        rows: with gold and the teacher's logits.

    Returns:
        ``scores`` and 95 % ``intervals`` by metric, and ``fidelity``: the share of rows with the teacher's label, or
        the Pearson correlation with its scores.
    """
    gold = (rows.label_N, rows.score_N)
    return {
        "scores": score_logits(metrics, target, logits_NC, *gold),
        "intervals": bootstrap_intervals(metrics, target, logits_NC, *gold),
        "fidelity": alike(target, logits_NC, teacher, rows.teacher_NC),
    }


def sentences_per_second(system: System, reference: System, rows: Rows) -> tuple[float, float]:
    """Returns rows per second of a system and of a reference, timed in turns, from text to logits on one core.

    Seconds are CPU time, so that other programs on the machine have little influence.

    Args:
        system: what is timed.
        reference: the system to compare with. Both are timed in turns, because the speed of machines varies.
        rows: the rows to read, at most the first `MOST_ROWS`.
    """
    systems = {"it": system, "reference": reference}
    with using_threads(1), _one_thread_for_blas():
        makes = {name: _make(one, rows) for name, one in systems.items()}
        sizes = {
            name: fitting_rows(make, min(MOST_ROWS, len(rows)), TURN_S, process_time) for name, make in makes.items()
        }
        turns: dict[str, Callable[[], object]] = {
            name: _turn(makes[name](count), calls) for name, (count, calls) in sizes.items()
        }
        # Ratios to a reference that is timed in turn with the system stay valid on a machine whose speed varies.
        taken = interleaved(turns, ROUNDS, clock=process_time)
    rates = {name: count * calls / taken[name] for name, (count, calls) in sizes.items()}
    return rates["it"], rates["reference"]


def _make(system: System, rows: Rows) -> Callable[[int], Callable[[], object]]:
    first, second = rows.texts1, rows.texts2
    return lambda count: lambda: system.logits(first[:count], second[:count] if second else None)


def _turn(call: Callable[[], object], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            call()

    return run


def _one_thread_for_blas() -> AbstractContextManager[object]:
    """Without scikit-learn, which installs threadpoolctl, no timed system uses numpy's threads."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


@dataclass(frozen=True)
class Difference:
    """The difference of two systems on the same rows.

    Attributes:
        mean: of the seeds' scores.
        error: its standard error over rows, by a paired bootstrap. It does not contain the variance between seeds. None
            if all resamples have the same difference, which shows no doubt, however few the rows are.
    """

    mean: float
    error: float | None


def metric_of(metric: Metric, target: Target, rows: Rows) -> Measure:
    """The score of a task's metric."""

    def measure(logits_NC: Floats, among: Ints) -> float:
        own = _own_target(target, logits_NC)
        return score_logits((metric,), own, logits_NC[among], rows.label_N[among], rows.score_N[among])[metric]

    return measure


def fidelity_to(teacher: Target, rows: Rows) -> Measure:
    """The share of rows with the teacher's label, or the Pearson correlation with its scores."""

    def measure(logits_NC: Floats, among: Ints) -> float:
        own = _own_target(teacher, logits_NC)
        return alike(own, logits_NC[among], teacher, rows.teacher_NC[among])

    return measure


def _own_target(target: Target, logits_NC: Floats) -> Target:
    """What logits mean: as the teacher's, or scores themselves where the teacher has bins."""
    return target if logits_NC.shape[1] == target.num_logits else SCORE


def alike(target: Target, logits_NC: Floats, teacher: Target, teacher_NC: Floats) -> float:
    """The share of rows with the teacher's label, or the Pearson correlation with its scores."""
    if target.has_labels:
        return fidelity(target, logits_NC, teacher_NC)["agreement"]
    outputs = (predicted_scores(t, part)[:, None] for t, part in ((target, logits_NC), (teacher, teacher_NC)))
    return fidelity(SCORE, *outputs)["pearson"]


def difference(measure: Measure, one_KNC: Floats, other_KNC: Floats) -> Difference:
    """Returns how much larger a measure is for one system than for another. The measures of seeds are averaged."""

    def mean(seeds_KNC: Floats, among: Ints) -> float:
        return float(np.mean([measure(logits_NC, among) for logits_NC in seeds_KNC]))

    def apart(among: Ints) -> float:
        return mean(one_KNC, among) - mean(other_KNC, among)

    all_N = np.arange(one_KNC.shape[1])
    random = np.random.default_rng(SEED)
    # Both systems are measured on the same resampled rows, so rows that are hard for both do not add to the error.
    values = [apart(random.choice(all_N, size=len(all_N))) for _ in range(RESAMPLES)]
    error = float(np.std(values))
    return Difference(apart(all_N), error if error > ROUNDING else None)


def kinds_of_rows(rows: Rows, train: Rows) -> dict[str, Bools]:
    """Returns which rows are of a kind, [N] each: with an English negation, short, long, and with unknown words.

    Short and long ones are about a third each. Unknown words are those that no training row has.
    """
    texts = rows.texts1 if rows.texts2 is None else list(map(" ".join, zip(rows.texts1, rows.texts2, strict=True)))
    words = [WORD.findall(text.lower()) for text in texts]
    known = {word for text in train.texts for word in WORD.findall(text.lower())}
    length_N = np.array([len(text) for text in words])
    low, high = np.quantile(length_N, (1 / 3, 2 / 3))
    return {
        "with a negation": np.array([bool(NEGATION.search(text)) for text in texts]),
        f"up to {int(low)} words": length_N <= int(low),
        f"more than {int(high)} words": length_N > int(high),
        "with an unknown word": np.array([not known.issuperset(text) for text in words]),
    }
