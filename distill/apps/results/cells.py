"""What was measured of each system of a task, kept in a file of its own, so that nothing is measured twice.

Shapes: N rows, C logits.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distill.apps.results.baselines import Baseline
from distill.apps.results.commands import content_sha256
from distill.apps.results.rows import Rows, read_rows
from distill.apps.results.scores import scores
from distill.apps.results.speed import sentences_per_second
from distill.apps.results.system import System
from distill.apps.results.systems import student_system, teacher_system
from pipeline.arrays import Floats
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.target import Target
from pipeline.tasks.task import Task
from pipeline.work import Workspace

VERSION = 1  # of the cells; another number has all of them measured again
Cell = dict[str, Any]


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
        """The teacher: its scores from the set, its speed from asking it again."""

        def measure() -> Cell:
            said = {split: [rows.teacher_NC] for split, rows in self.dev.items()}
            system = teacher_system(self._task, folder, self._set)
            return self._scored(system.target, said) | self._size(system) | self._speed(system)

        return self._measured_once("teacher", reads, measure)

    def student(self, name: str, runs: Sequence[Path], reads: Sequence[str | Path]) -> Cell:
        """Students of one kind with different seeds; size and speed are those of the first."""

        def measure() -> Cell:
            systems = [student_system(run) for run in runs]
            said = {
                split: [system.logits(rows.texts1, rows.texts2) for system in systems]
                for split, rows in self.dev.items()
            }
            return self._scored(systems[0].target, said) | self._size(systems[0]) | self._speed(systems[0])

        return self._measured_once(f"student-{name}", reads, measure)

    def baseline(self, name: str, baseline: Baseline, vectors: Path, reads: Sequence[str | Path]) -> Cell:
        """A baseline, fitted on the training rows of the set."""

        def measure() -> Cell:
            self._train = self._train or read_rows(self._set, "train")
            start = time.perf_counter()
            system = baseline.fit(self._train, self._set.record.target, vectors)
            seconds = time.perf_counter() - start
            said = {split: [system.logits(rows.texts1, rows.texts2)] for split, rows in self.dev.items()}
            timed = self._speed(system) if system.num_parameters else {}
            return self._scored(system.target, said) | self._size(system) | timed | {"training_seconds": [seconds]}

        return self._measured_once(f"baseline-{name}", reads, measure)

    def _measured_once(self, name: str, reads: Sequence[str | Path], measure: Callable[[], Cell]) -> Cell:
        settings = {"version": VERSION, "reads": content_sha256(reads)}
        work = Workspace(self._folder, settings, title="a cell", record_name=f"{name}.json", redo=True)
        if work.start() != "finished":
            work.finish(measure())
        return work.result()

    def _scored(self, target: Target, said: dict[str, list[Floats]]) -> Cell:
        """Scores by split, with a value for each seed of ``said``."""
        metrics, teacher = self._task.metrics, self._set.record.target
        return {
            "splits": {
                split: [scores(metrics, target, logits_NC, teacher, self.dev[split]) for logits_NC in seeds]
                for split, seeds in said.items()
            }
        }

    def _size(self, system: System) -> Cell:
        return {"parameters": system.num_parameters, "bytes": system.num_bytes}

    def _speed(self, system: System) -> Cell:
        rows = next(iter(self.dev.values()))
        rate, reference = sentences_per_second(system, student_system(self._reference), rows)
        return {"sentences_per_second": rate, "times_default": rate / reference}
