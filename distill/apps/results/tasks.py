"""Which tasks are compared: those asked for, or those of GLUE whose rows are here."""

from pathlib import Path

from distill.apps.results.config import ResultsConfig
from distill.apps.results.experiment import load_experiment
from distill.apps.results.plan import TaskPlan
from distill.apps.results.starts import Planner, task_problems
from pipeline.environment import data_folder
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.sources.source import find_files
from pipeline.tasks.task import Task, load_task, task_names


def plans(config: ResultsConfig) -> list[TaskPlan]:
    """What is to be done for each task, everything checked before anything is computed.

    Raises:
        ConfigError: if a task, a manifest or the experiment is wrong.
        DataError: if rows that were asked for are not there.
    """
    experiment, subject = load_experiment(config.experiment)
    tasks = {task.name: (task, manifest) for task, manifest in chosen(config)}
    raise_all(ConfigError, subject, task_problems(experiment, tasks, {*task_names(), *tasks}))
    planner = Planner(config, experiment, subject, tasks)
    return [planner.plan(name) for name in tasks]


def chosen(config: ResultsConfig) -> list[tuple[Task, Path | None]]:
    """The tasks, and the files of those manifests that do not come with the package.

    Raises:
        ConfigError: for an unknown name, or one that is there twice.
        DataError: if no task is named and no rows of one are found.
    """
    for name in config.task_names:
        if name not in task_names():
            raise ConfigError(f"--tasks: unknown task {name!r}: {did_you_mean(name, task_names())}")
    own: list[tuple[Task, Path | None]] = [(load_task(manifest=Path(path)), Path(path)) for path in config.manifest]
    named = config.task_names or (() if own else _found(config))
    tasks = [*((load_task(name), None) for name in named), *own]
    names = [task.name for task, _ in tasks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"--tasks, --manifest: {', '.join(sorted(twice))} is there twice")
    return tasks


def _found(config: ResultsConfig) -> tuple[str, ...]:
    """The tasks of the package with rows in the folder; without a folder all, from the hub."""
    folder = config.data or data_folder()
    if folder is None:
        return tuple(task_names())
    tasks = [load_task(name) for name in task_names()]
    found = tuple(task.name for task in tasks if find_files(task, folder, tuple(task.splits)))
    if not found:
        raise DataError(f"{folder}: holds no rows of any task that comes with the package; name them with --tasks")
    return found
