"""The runs of a sweep: every combination of values with every seed. Each set is opened once."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from pipeline.errors import ConfigError, did_you_mean, raise_all
from pipeline.file_names import RUN_RECORD
from pipeline.query.mixture import mix_of
from pipeline.record_file import Record, read_work_record
from pipeline.resumable import FINISHED
from pipeline.sets.open import LogitSet
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.settings import attempt, flags, flat
from pipeline.shared_settings import ReportFlags, SeedFlags
from student.fit import build_joint_configs, vectors_source
from student.initial_weights.run import source_sha256
from student.initial_weights.vectors import given_vectors, has_pretrained, read_pretrained
from student.model.architecture import TaskConfig
from student.settings import SETS, RunPlaces, SweepSettings, TrainSettings, load_recipe, with_recipe
from student.source_settings import BestEpoch, CalibrationRows, OneTask, Sets, SeveralTasks
from student.training_data import (
    build_student_config,
    in_students_vocabulary,
    open_training_set,
    separate,
    source_of,
    task_facts,
)

# Commas separate the values of a grid, so tasks that are trained together need another sign.
TOGETHER = "+"
# The metric and its rows are fixed, too, because scores by different metrics cannot be compared.
FIXED = (OneTask, Sets, RunPlaces, ReportFlags, SeedFlags, BestEpoch, CalibrationRows)
SWEPT = sorted(flags(TrainSettings).keys() - {name for part in FIXED for name in flags(part)})


Grid = Mapping[str, Sequence[Any]]
# Keys are the names of sets, so that a set that several students name is opened once.
Opened = dict[tuple[str, ...], LogitSet]


@dataclass(frozen=True)
class Trial:
    """One student of a sweep: its values including the seed, and the resulting settings."""

    values: dict[str, Any]
    settings: TrainSettings
    folder: Path

    @property
    def point(self) -> tuple[Any, ...]:
        """The values in the order of the grid, without the seed."""
        return tuple(value for name, value in self.values.items() if name != "seed")

    @property
    def is_finished(self) -> bool:
        """Whether its run folder contains the result."""
        return (self.folder / RUN_RECORD).exists() and self.record["state"] == FINISHED

    @property
    def record(self) -> Record:
        """The record of its run."""
        return read_work_record(self.folder / RUN_RECORD)


def make_points(sweep: SweepSettings, grid: Grid) -> list[TrainSettings]:
    """Returns the settings of every combination of values, with the first seed.

    Args:
        sweep: the fixed settings.
        grid: the values to try. See `read_grid`.

    Raises:
        ConfigError: naming every value that is wrong, and every flag that does not fit another.
    """
    fixed = fixed_values(sweep, grid)
    tried = [attempt(TrainSettings, fixed | dict(zip(grid, point, strict=True))) for point in product(*grid.values())]
    # All combinations are checked before the first training, since a sweep may run for days.
    raise_all(ConfigError, "--grid", sorted({problem for _, problems in tried for problem in problems}))
    return [made for made, _ in tried if made is not None]


def fixed_values(sweep: SweepSettings, grid: Grid) -> dict[str, Any]:
    """Returns the settings that all students share, by flag, including a recipe's.

    Leaves out its sets if tasks are swept.
    """
    values = with_recipe(sweep.student)
    others = SETS - sweep.student.keys() if "tasks" in grid else set()
    return {name: value for name, value in values.items() if name not in others | grid.keys()}


def make_trials(
    points: Sequence[TrainSettings],
    seeds: int,
    grid: Grid,
    folder: Path,
    make: Callable[[TrainSettings], TaskConfig],
) -> list[Trial]:
    """Returns all students of a sweep.

    Args:
        points: the result of `make_points`.
        seeds: the seeds of each point.
        grid: the values to try.
        folder: the folder of the sweep.
        make: returns the architecture that the settings describe.

    Raises:
        ConfigError: naming every conflict with the sets, before anything is trained.
    """
    trials, problems = [], set()
    for point in points:
        try:
            source_sha256(point.start.folder, make(point))
        except ConfigError as error:
            problems.add(str(error).removeprefix("wrong flags: "))
            continue
        # The seed is the innermost loop, so that all seeds of a point finish close together.
        for seed in range(point.seed, point.seed + seeds):
            told = to_jsonable_python(flat(point)) | {"tasks": tasks_text(point), "seed": seed}
            values = {name: told[name] for name in (*grid, "seed")}
            run = folder / run_name(values)
            trials.append(Trial(values, point.model_copy(update={"seed": seed, "output_dir": run}), run))
    raise_all(ConfigError, "--grid", sorted(problems))
    again = [name for name, count in Counter(trial.folder.name for trial in trials).items() if count > 1]
    if again:
        raise ConfigError(f"--grid: a value is repeated, which repeats {again[0]}")
    return trials


def run_name(values: dict[str, Any]) -> str:
    """Returns the subfolder of a run from its values and seed."""
    # Folder names repeat the values, so that a run is recognised without opening its record.
    return ",".join(f"{key}={value}" for key, value in values.items()).replace("/", "-")


def tasks_text(settings: TrainSettings) -> str:
    """Returns the names of the sets that are trained together."""
    names = [one.names[0] for one in settings.source.each] if isinstance(settings.source, SeveralTasks) else []
    return TOGETHER.join(Path(name).resolve().name for name in names)


def read_grid(sweep: SweepSettings) -> Grid:
    """Returns the values to try, by setting. Given flags override the grid of a recipe.

    Raises:
        ConfigError: naming every setting that cannot be tried.
    """
    typed = sweep.student.keys()
    if sweep.grid:
        pairs = [entry.partition("=") for entry in sweep.grid]
        grid: dict[str, list[Any]] = {name.replace("-", "_"): values.split(",") for name, _, values in pairs}
    else:
        recipe_grid = load_recipe(sweep.student["recipe"]).grid if "recipe" in typed else {}
        # A flag names one value, so a recipe's list of values for the same setting is dropped.
        beaten = typed | ({"tasks"} if typed & SETS else set())
        grid = {name: values for name, values in recipe_grid.items() if name not in beaten}
    problems = [f"{name!r} cannot be swept. {did_you_mean(str(name), SWEPT)}" for name in grid if name not in SWEPT]
    problems += [f"{name}: no values. Write {name}=VALUE,VALUE" for name, values in grid.items() if "" in values]
    problems += [f"{name} is also given as a flag. Remove one of them" for name in grid if name in typed]
    names = Counter(entry.partition("=")[0].replace("-", "_") for entry in sweep.grid)
    problems += [f"{name} is repeated. Give all its values at once" for name, count in names.items() if count > 1]
    raise_all(ConfigError, "--grid", problems)
    if "tasks" in grid:
        raise_all(ConfigError, "--grid", _wrong_tasks([str(value).split(TOGETHER) for value in grid["tasks"]]))
        grid["tasks"] = [str(value).replace(TOGETHER, ",") for value in grid["tasks"]]
    return grid


def _wrong_tasks(values: Sequence[Sequence[str]]) -> list[str]:
    problems = [
        f"tasks={TOGETHER.join(names)}: a name is missing next to {TOGETHER}" for names in values if "" in names
    ]
    # The order of tasks does not change a training, so two orders would train the same student twice.
    sets = [sorted(names) for names in values]
    again = {TOGETHER.join(names) for names in sets if sets.count(names) > 1}
    return problems + [f"tasks: {names} is repeated, perhaps in another order" for names in sorted(again)]


def open_all(points: Sequence[TrainSettings]) -> Opened:
    """Opens the sets of all students.

    Raises:
        ConfigError: listing names that two sets share.
        DataError: if there is no such set, or it has no training rows.
    """
    sources = {source_of(one).names: source_of(one) for point in points for one in separate(point)}
    access = (points[0].store, points[0].allow_unverified)
    opened = {names: open_training_set(source, *access) for names, source in sources.items()}
    by_name: dict[str, list[str]] = {}
    for one in opened.values():
        by_name.setdefault(one.name, []).append(str(one.root.resolve()))
    raise_all(ConfigError, "--tasks", [_of_one_name(name, roots) for name, roots in by_name.items() if len(roots) > 1])
    return opened


def _of_one_name(name: str, roots: list[str]) -> str:
    """Returns the message for two sets of one name, whose students would share a folder."""
    if len(set(roots)) == 1:
        return f"{name} is given by two different paths. Write both in the same way"
    return f"{name} is the name of {' and of '.join(roots)}. Rename one of these folders"


def build_swept_config(sets: Opened, settings: TrainSettings) -> TaskConfig:
    """Returns the architecture of a student, or of the first one of several tasks.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
    """
    parts = separate(settings)
    made: TaskConfig
    opened = in_students_vocabulary(settings, [sets[source_of(one).names] for one in parts])
    facts = [task_facts(one) for one in opened]
    if isinstance(settings.source, SeveralTasks):
        made, giver = build_joint_configs(parts, opened, facts)[0][1], opened[vectors_source(opened)]
    else:
        made, giver = build_student_config(settings, opened[0], facts[0])[0], opened[0].sets[0]
    # The check raises an error for missing vectors now, and not after hours of other trainings.
    given_vectors(settings.encoder, settings.start, giver)
    return made


def settings_of(fixed: Mapping[str, Any], sets: Opened) -> dict[str, Any]:
    """Returns the properties of the sets that decide the students, for several tasks by TASK.SETTING.

    The ``tasks`` are included if they are the same for all students.
    """
    opened = list(sets.values())
    if "task" in fixed or "set" in fixed:
        return _of_set(fixed, opened[0])
    tasks = {"tasks": [one.name for one in opened] if "tasks" in fixed else None}
    return tasks | {f"{one.name}.{key}": value for one in opened for key, value in _of_set(fixed, one).items()}


def is_of_a_task(setting: str) -> bool:
    """Whether a setting belongs to one of several tasks. See `settings_of`."""
    return "." in setting


def _of_set(fixed: Mapping[str, Any], logit_set: LogitSet) -> dict[str, Any]:
    # A set may have gained token vectors since earlier runs, or distill other pretrained ones. Students with
    # another start cannot be compared.
    first, init = logit_set.sets[0], fixed.get("init")
    vectors = read_token_vectors(first.root, first.record) if init in (None, "teacher") else None
    can_be_pretrained = init in (None, "pretrained") and has_pretrained(first)
    return {
        "token_vectors_sha256": vectors.sha256 if vectors else None,
        "pretrained_vectors_sha256": read_pretrained().sha256 if can_be_pretrained else None,
        "logit_set_fingerprints": [one.record.fingerprint for one in logit_set.sets],
        "mix": mix_of(logit_set),
    }
