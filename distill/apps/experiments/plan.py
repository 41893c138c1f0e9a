"""The commands of each task of an experiment: fine-tune teachers, dump the best one, train students."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from distill.apps.app_settings import ExperimentSettings
from distill.apps.cells import Command, weights_of
from distill.apps.experiments.experiment import FROM, SHIPPED, Experiment, TaskParts, as_file, load_experiment
from pipeline import console
from pipeline.environment import data_folder
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.file_names import FINETUNE_RECORD, RUN_RECORD
from pipeline.record_file import read_work_record
from pipeline.sets.record import FILE_NAME
from pipeline.sources import Source, load_source, rows_sha256
from pipeline.sources.split_files import find_files
from pipeline.tasks.task import TRAIN, Task, load_task, task_names
from pipeline.training.best_epoch import quality

FIRST_SEED = 42


@dataclass(frozen=True)
class TaskPlan:
    """A task, its rows, the compared systems, and their folders.

    Attributes:
        config: the settings.
        task: its manifest.
        manifest: the manifest's file, if it is not one that comes with the package.
        source: its rows.
        parts: the experiment's settings for it.
        start: the task whose teachers are the start of this task's teachers, each with the same seed. None: the
            encoder.
        absent_start: the task that ``start`` would be if its training rows existed.
    """

    config: ExperimentSettings
    task: Task
    manifest: Path | None
    source: Source
    parts: TaskParts
    start: "TaskPlan | None" = None
    absent_start: str | None = None

    @property
    def records(self) -> Path:
        """Folder of the task's records of finished commands and of its measurements."""
        return self.config.output_dir / "cells" / self.task.name

    @property
    def teachers_folder(self) -> Path:
        """Folder of the task's fine-tuned teachers, one per seed."""
        return self.config.output_dir / "teachers" / self.task.name

    @property
    def student_seeds(self) -> range:
        """Seeds of each kind of student."""
        return range(FIRST_SEED, FIRST_SEED + self.config.seeds)

    @property
    def chain(self) -> list["TaskPlan"]:
        """The tasks in the order in which their teachers are fine-tuned, this task last."""
        return [*(self.start.chain if self.start else ()), self]

    def finetune(self) -> list[Command]:
        """The commands that make this task's teachers. Empty if there are teachers already."""
        if not self.config.finetunes:
            return []
        commands, rows = [], self._rows_sha256()
        for folder in self._teachers():
            encoder = str(self.started_from(folder) or self.config.model_name_or_path)
            flags = self._rows("--model-name-or-path", encoder, "--output-dir", str(folder), "--seed", folder.name)
            reads: list[str | Path] = [rows, *weights_of(encoder)]
            makes = folder / FINETUNE_RECORD
            commands.append(self._command("finetune-teacher", [*flags, *self.parts.teacher], makes, reads))
        return commands

    def started_from(self, teacher: Path) -> Path | None:
        """Returns the teacher from which one of this task's teachers is fine-tuned, or None if that is the encoder."""
        return self.start.teachers_folder / teacher.name if self.start else None

    def teacher(self) -> str:
        """Returns the given teacher, the one of the manifest, or the fine-tuned one with the best held-out score.

        Without scores, returns the first fine-tuned one.

        Raises:
            DataError: if the given folder has no teacher for this task.
        """
        if self.config.teachers is not None:
            folder = self.config.teachers / self.task.name
            if not folder.is_dir():
                raise DataError(f"--teachers {self.config.teachers}: has no folder {self.task.name!r}")
            return str(folder)
        if not self.config.finetunes:
            assert self.task.teacher is not None, "checked by `plans`"
            return self.task.teacher.model
        folders = self._teachers()
        finished = [folder for folder in folders if (folder / FINETUNE_RECORD).is_file()]
        records = {folder: read_work_record(folder / FINETUNE_RECORD) for folder in finished}
        best = {folder: quality(record["result"]["best"]) for folder, record in records.items() if "result" in record}
        return str(max(best, key=best.__getitem__) if best else folders[0])

    def dump(self, name: str) -> Command:
        """The command that makes a set."""
        teacher, folder = self.teacher(), self.set_folder(name)
        # The manifest has the order of the labels of its own teacher, too.
        is_own = self.task.teacher is None or teacher != self.task.teacher.model
        which = ("--model-name-or-path", teacher) if is_own else ()
        where = ("--store", str(folder.parent), "--name", folder.name)
        flags = [*self._rows(*which, *where), *self.parts.sets[name]]
        reads: list[str | Path] = [self._rows_sha256(), *weights_of(teacher)]
        if self.task.augment is not None:
            # A manifest's augmentation is no flag, but it changes the rows, so it has to invalidate a finished dump.
            reads.append(f"{self.task.augment}: {self.task.num_variants}")
        return self._command("teacher-dump", flags, folder / FILE_NAME, reads)

    def train(self, name: str, seed: int) -> Command:
        """The command that trains a student."""
        folder, logit_set = self.run_folder(name, seed), self.set_folder(self.parts.set_of[name])
        flags = ["--set", str(logit_set), "--output-dir", str(folder), "--seed", str(seed)]
        settings = self.parts.students[name]
        # A student that starts from another run depends on its weights, not only on its path.
        start = Path(settings[settings.index("--init") + 1]) if "--init" in settings else None
        reads = [logit_set / FILE_NAME, *(weights_of(start) if start is not None and start.is_dir() else ())]
        return self._command("train-student", [*flags, *settings], folder / RUN_RECORD, reads)

    def set_folder(self, name: str) -> Path:
        """Returns the folder of a set. The first set has the name of the task."""
        is_first = name == next(iter(self.parts.sets))
        return self.config.output_dir / "logits" / (self.task.name if is_first else f"{self.task.name}-{as_file(name)}")

    def run_folder(self, name: str, seed: int) -> Path:
        """Returns the folder of a student."""
        return self.config.output_dir / "runs" / self.task.name / f"{as_file(name)}-{seed}"

    def all_commands(self) -> list[Command]:
        """Every command in the order in which they have to run."""
        students = [self.train(name, seed) for name in self.parts.students for seed in self.student_seeds]
        teachers = [command for plan in self.chain for command in plan.finetune()]
        return [*teachers, *map(self.dump, self.parts.sets), *students]

    def _teachers(self) -> list[Path]:
        return [self.teachers_folder / str(seed) for seed in range(FIRST_SEED, FIRST_SEED + self.config.teacher_seeds)]

    def _rows(self, *flags: str) -> list[str]:
        which = ["--manifest", str(self.manifest)] if self.manifest else ["--task", self.task.name]
        return [*which, *(["--data", str(self.config.data)] if self.config.data else []), *flags]

    def _rows_sha256(self) -> str:
        return " ".join(f"{split} {rows_sha256(rows)}" for split, rows in self.source.splits.items())

    def _command(self, name: str, flags: list[str], makes: Path, reads: Iterable[str | Path]) -> Command:
        record = self.records / f"{name}-{makes.parent.name}.json"
        return Command((name, *flags), makes, tuple(reads), record)


def plans(config: ExperimentSettings) -> list[TaskPlan]:
    """Returns the plan of each task, after all checks and before any computation.

    Raises:
        ConfigError: if a task, a manifest or the experiment is wrong.
        DataError: if requested rows do not exist.
    """
    experiment = load_experiment(config.experiment)
    tasks = {task.name: (task, manifest) for task, manifest in chosen(config)}
    problems = task_problems(experiment, tasks, {*task_names(), *tasks})
    if config.teachers is None and not config.finetunes:
        advice = "Give --model-name-or-path ENCODER to fine-tune one, or --teachers FOLDER"
        absent = [name for name, (task, _) in tasks.items() if task.teacher is None]
        problems += [f"{name}: the manifest has no teacher. {advice}" for name in absent]
    raise_all(ConfigError, f"--experiment {config.experiment}", problems)
    planner = Planner(config, experiment, tasks)
    return [planner.plan(name) for name in tasks]


def chosen(config: ExperimentSettings) -> list[tuple[Task, Path | None]]:
    """The tasks, and the files of those manifests that do not come with the package.

    Raises:
        ConfigError: for an unknown name, or a repeated one.
        DataError: if no task is named, and no rows of any task are found.
    """
    for name in config.task_names:
        if name not in task_names():
            raise ConfigError(f"--tasks: unknown task {name!r}. {did_you_mean(name, task_names())}")
    own: list[tuple[Task, Path | None]] = [(load_task(manifest=Path(path)), Path(path)) for path in config.manifest]
    named = config.task_names or (() if own else _found(config))
    tasks = [*((load_task(name), None) for name in named), *own]
    names = [task.name for task, _ in tasks]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"--tasks, --manifest: {', '.join(sorted(twice))} is repeated. Name each task once.")
    return tasks


def _found(config: ExperimentSettings) -> tuple[str, ...]:
    """Returns the tasks of the package with rows in the folder. Without a folder, returns all of them, from the hub."""
    folder = _folder(config)
    if folder is None:
        return tuple(task_names())
    tasks = [load_task(name) for name in task_names()]
    found = tuple(task.name for task in tasks if find_files(task, folder, tuple(task.splits)))
    if not found:
        raise DataError(f"{folder}: contains no rows of a shipped task. Name your tasks with --tasks.")
    return found


class Planner:
    """Makes each task's plan once, after the plan of the task whose teacher is its start.

    Args:
        config: the settings.
        experiment: the content of the file.
        tasks: the tasks that are compared, and their manifests, by name.

    Raises:
        ConfigError: if a setting is wrong.
    """

    def __init__(
        self, config: ExperimentSettings, experiment: Experiment, tasks: dict[str, tuple[Task, Path | None]]
    ) -> None:
        self._config, self._experiment, self._tasks = config, experiment, tasks
        self._context = f"--experiment {config.experiment}"
        names = dict.fromkeys([*tasks, *(start for _, start in _starts(experiment))])
        self._parts = {name: TaskParts(experiment, name, self._context) for name in names}
        self._plans: dict[str, TaskPlan] = {}

    def plan(self, name: str) -> TaskPlan:
        """A task's plan.

        Raises:
            DataError: if its rows do not exist, or those of the task from which its teacher must start.
        """
        if name not in self._plans:
            task, manifest = self._tasks.get(name) or (load_task(name), None)
            rows = load_source(task, self._config.data)
            self._plans[name] = self._started(TaskPlan(self._config, task, manifest, rows, self._parts[name]))
        return self._plans[name]

    def _started(self, plan: TaskPlan) -> TaskPlan:
        """Returns a plan with the plan of the task from which its teacher starts, if that teacher has to be made."""
        start = self._experiment.start_of(plan.task.name)
        if start is None or not self._config.finetunes or TRAIN not in plan.source.splits:
            return plan
        if self._has_rows(start, plan.task):
            return replace(plan, start=self.plan(start))
        name, absent = plan.task.name, f"no training rows of {start!r} in {_folder(self._config)}"
        # The user's experiment requires the start. A shipped one only prefers it.
        if self._config.experiment not in SHIPPED:
            advice = f"Put them there, in a folder {start!r}, or remove `{FROM}`."
            raise DataError(f"{self._context}: teacher of {name}: {FROM}: {start}: {absent}. {advice}")
        console.warn(f"{name}: its teacher starts from the encoder, and not from that of {start}: {absent}")
        parts = TaskParts(self._experiment.without_teacher(name), name, self._context)
        return replace(plan, parts=parts, absent_start=start)

    def _has_rows(self, start: str, task: Task) -> bool:
        """Whether the task at the start has training rows of its own."""
        if start in self._tasks:
            return TRAIN in self.plan(start).source.splits
        folder = _folder(self._config)
        if folder is None:
            return True
        file, other = (find_files(one, folder, tuple(one.splits)).get(TRAIN) for one in (load_task(start), task))
        return file is not None and file != other


def task_problems(experiment: Experiment, chosen: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns the problems with the names of tasks in an experiment, one per line.

    Args:
        experiment: the whole of it.
        chosen: the tasks that are compared.
        known: all tasks.
    """
    named = [*(("", task) for task in experiment.tasks), *_starts(experiment)]
    unknown = [(place, task) for place, task in named if task not in known]
    return [f"{place}unknown task {task!r}. {did_you_mean(task, known)}" for place, task in unknown] + [
        f"teacher: {FROM}: {' from '.join(circle)} is a cycle. Give one of them `{FROM}: null`"
        for circle in _circles(experiment, [*experiment.tasks, *chosen])
    ]


def _folder(config: ExperimentSettings) -> Path | None:
    return config.data or data_folder()


def _starts(experiment: Experiment) -> list[tuple[str, str]]:
    """Returns where the experiment names a task as a start, and the name of that task."""
    teachers = {"": experiment.teacher} | {f"tasks: {task}: ": own.teacher for task, own in experiment.tasks.items()}
    return [(f"{place}teacher: {FROM}: ", one[FROM]) for place, one in teachers.items() if one.get(FROM) is not None]


def _circles(experiment: Experiment, tasks: Iterable[str]) -> list[list[str]]:
    """Returns a cycle of tasks, in which each teacher starts from that of the next task.

    The last task is the first one.
    """
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
