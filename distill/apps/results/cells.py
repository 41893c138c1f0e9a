"""Measures each system of a task and stores the result in its own file, so that nothing is measured twice.

Shapes: N rows, C logits.
"""

import importlib.util
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import process_time
from typing import Any

from distill.apps.bench.timing import ROUNDS, fitting_rows, interleaved, using_threads
from distill.apps.results.plan import content_sha256
from distill.apps.results.systems import SCORE, Baseline, Rows, System, read_rows, student_system, teacher_system
from pipeline.arrays import Floats
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.metrics import bootstrap_intervals, fidelity, score_logits
from pipeline.tasks.target import Target, predicted_scores
from pipeline.tasks.task import Metric, Task
from pipeline.work import Workspace

VERSION = 1  # increase it to measure all cells again
Cell = dict[str, Any]
TURN_S = 0.25
MOST_ROWS = 1024


class TaskCells:
    """The systems of a task, measured on its rows.

    Args:
        task: the task.
        logit_set: its first set, with rows, gold and the teacher's answers.
        reference: the run that speeds are compared with.
        folder: where the files are kept.
    """

    def __init__(self, task: Task, logit_set: ExampleSet, reference: Path, folder: Path) -> None:
        self._task, self._set, self._reference, self._folder = task, logit_set, reference, folder
        self.dev = {split: read_rows(logit_set, split) for split in logit_set.splits if split != "train"}
        self._train: Rows | None = None

    def teacher(self, folder: Path, reads: Sequence[str | Path]) -> Cell:
        """Measures the teacher: its scores from the set, its speed by running it again."""

        def measure() -> Cell:
            outputs = {split: [rows.teacher_NC] for split, rows in self.dev.items()}
            system = teacher_system(self._task, folder, self._set)
            return self._scored(system.target, outputs) | self._size(system) | self._speed(system)

        return self._measured_once("teacher", reads, measure)

    def student(self, name: str, runs: Sequence[Path], reads: Sequence[str | Path]) -> Cell:
        """Measures students of one kind with different seeds. Size and speed are those of the first seed."""

        def measure() -> Cell:
            systems = [student_system(run) for run in runs]
            outputs = {
                split: [system.logits(rows.texts1, rows.texts2) for system in systems]
                for split, rows in self.dev.items()
            }
            return self._scored(systems[0].target, outputs) | self._size(systems[0]) | self._speed(systems[0])

        return self._measured_once(f"student-{name}", reads, measure)

    def baseline(self, name: str, baseline: Baseline, vectors: Path, reads: Sequence[str | Path]) -> Cell:
        """A baseline, fitted on the training rows of the set."""

        def measure() -> Cell:
            self._train = self._train or read_rows(self._set, "train")
            start = time.perf_counter()
            system = baseline.fit(self._train, self._set.record.target, vectors)
            seconds = time.perf_counter() - start
            outputs = {split: [system.logits(rows.texts1, rows.texts2)] for split, rows in self.dev.items()}
            timed = self._speed(system) if system.num_parameters else {}
            return self._scored(system.target, outputs) | self._size(system) | timed | {"training_seconds": [seconds]}

        return self._measured_once(f"baseline-{name}", reads, measure)

    def _measured_once(self, name: str, reads: Sequence[str | Path], measure: Callable[[], Cell]) -> Cell:
        # Content hashes instead of modification times: the measurements stay valid in a copied folder.
        settings = {"version": VERSION, "reads": content_sha256(reads)}
        work = Workspace(self._folder, settings, title="a cell", record_name=f"{name}.json", redo=True)
        if work.start() != "finished":
            work.finish(measure())
        return work.result()

    def _scored(self, target: Target, outputs: dict[str, list[Floats]]) -> Cell:
        """Scores by split, with a value for each seed of ``outputs``."""
        metrics, teacher = self._task.metrics, self._set.record.target
        return {
            "splits": {
                split: [scores(metrics, target, logits_NC, teacher, self.dev[split]) for logits_NC in seeds]
                for split, seeds in outputs.items()
            }
        }

    def _size(self, system: System) -> Cell:
        return {"parameters": system.num_parameters, "bytes": system.num_bytes}

    def _speed(self, system: System) -> Cell:
        rows = next(iter(self.dev.values()))
        rate, reference = sentences_per_second(system, student_system(self._reference), rows)
        return {"sentences_per_second": rate, "times_default": rate / reference}


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
    if target.has_labels:
        alike = fidelity(target, logits_NC, rows.teacher_NC)["agreement"]
    else:
        outputs = (predicted_scores(t, part)[:, None] for t, part in ((target, logits_NC), (teacher, rows.teacher_NC)))
        alike = fidelity(SCORE, *outputs)["pearson"]
    return {
        "scores": score_logits(metrics, target, logits_NC, *gold),
        "intervals": bootstrap_intervals(metrics, target, logits_NC, *gold),
        "fidelity": alike,
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
