"""Which task's teacher another's starts from: what is wrong with that in an experiment, and plans in their order."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from distill.apps.results.config import ResultsConfig
from distill.apps.results.experiment import FROM, Experiment, TaskParts
from distill.apps.results.plan import TaskPlan
from pipeline import console
from pipeline.environment import data_folder
from pipeline.errors import DataError, did_you_mean
from pipeline.sources import load_source
from pipeline.sources.source import find_files
from pipeline.tasks.task import TRAIN, Task, load_task


class Planner:
    """Makes each task's plan once, before it that of the task whose teacher its own starts from.

    Args:
        config: the settings.
        experiment: what the file says.
        subject: the file, for messages.
        tasks: the tasks that are compared, and their manifests, by name.

    Raises:
        ConfigError: if a setting is wrong.
    """

    def __init__(
        self, config: ResultsConfig, experiment: Experiment, subject: str, tasks: dict[str, tuple[Task, Path | None]]
    ) -> None:
        self._config, self._experiment, self._subject, self._tasks = config, experiment, subject, tasks
        names = dict.fromkeys([*tasks, *(start for _, start in _starts(experiment))])
        self._parts = {name: TaskParts(experiment, name, subject) for name in names}
        self._plans: dict[str, TaskPlan] = {}

    def plan(self, name: str) -> TaskPlan:
        """A task's plan.

        Raises:
            DataError: if its rows are not there, or those of the task that its file names as its start.
        """
        if name not in self._plans:
            task, manifest = self._tasks.get(name) or (load_task(name), None)
            rows = load_source(task, self._config.data)
            self._plans[name] = self._started(TaskPlan(self._config, task, manifest, rows, self._parts[name]))
        return self._plans[name]

    def _started(self, plan: TaskPlan) -> TaskPlan:
        """A plan with that of the task that its teacher starts from, if it does and has to be made."""
        start = self._experiment.start_of(plan.task.name)
        if start is None or self._config.teachers is not None or TRAIN not in plan.source.splits:
            return plan
        if self._has_rows(start, plan.task):
            return replace(plan, start=self.plan(start))
        name, absent = plan.task.name, f"no training rows of {start!r} in {_folder(self._config)}"
        if self._config.experiment is not None:  # which asks for it; the plan of the package only prefers it
            advice = f"put them there, in a folder {start!r}, or leave `{FROM}` out"
            raise DataError(f"{self._subject}: teacher of {name}: {FROM}: {start}: {absent}; {advice}")
        console.warn(f"{name}: its teacher starts from the encoder, and not from that of {start}: {absent}")
        parts = TaskParts(self._experiment.without_teacher(name), name, self._subject)
        return replace(plan, parts=parts, absent_start=start)

    def _has_rows(self, start: str, task: Task) -> bool:
        """Whether there are training rows of the task that another one starts from, which are not that one's own."""
        if start in self._tasks:
            return TRAIN in self.plan(start).source.splits
        folder = _folder(self._config)
        if folder is None:
            return True
        file, other = (find_files(one, folder, tuple(one.splits)).get(TRAIN) for one in (load_task(start), task))
        return file is not None and file != other


def task_problems(experiment: Experiment, chosen: Iterable[str], known: Collection[str]) -> list[str]:
    """What is wrong with the names of tasks in an experiment, a line each.

    Args:
        experiment: the whole of it.
        chosen: the tasks that are compared.
        known: all that there are.
    """
    named = [*(("", task) for task in experiment.tasks), *_starts(experiment)]
    unknown = [(place, task) for place, task in named if task not in known]
    return [f"{place}unknown task {task!r}: {did_you_mean(task, known)}" for place, task in unknown] + [
        f"teacher: {FROM}: {' from '.join(circle)} goes round in a circle; give one of them `{FROM}: null`"
        for circle in _circles(experiment, [*experiment.tasks, *chosen])
    ]


def _folder(config: ResultsConfig) -> Path | None:
    return config.data or data_folder()


def _starts(experiment: Experiment) -> list[tuple[str, str]]:
    """Tasks whose teachers others start from: where each is named, and its name."""
    teachers = {"": experiment.teacher} | {f"tasks: {task}: ": own.teacher for task, own in experiment.tasks.items()}
    return [(f"{place}teacher: {FROM}: ", one[FROM]) for place, one in teachers.items() if one.get(FROM) is not None]


def _circles(experiment: Experiment, tasks: Iterable[str]) -> list[list[str]]:
    """Tasks each of whose teachers starts from that of the next; the first one is the last, too."""
    circles: list[list[str]] = []
    seen: set[str] = set()
    for task in tasks:
        chain: list[str] = []
        at: str | None = task
        while at is not None and at not in seen:
            seen.add(at)
            chain.append(at)
            at = experiment.start_of(at)
        if at in chain:
            circles.append([*chain[chain.index(at) :], at])
    return circles
