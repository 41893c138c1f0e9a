"""What a sweep tries: every combination of values with every seed, from sets that are each opened once."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, did_you_mean, raise_all
from pipeline.query.mixture import mix_of
from pipeline.sets.reader import LogitSet
from pipeline.sets.token_vectors import read_token_vectors
from pipeline.training.run_record import RUN_RECORD, read_run_record
from student.config import SweepConfig, TrainConfig
from student.fit import build_joint_configs, vectors_source
from student.model.architecture import Facts, TaskConfig
from student.recipe import PLACES, SETS, load_recipe
from student.start import source_sha256, starts_from_teacher
from student.training_data import build_student_config, open_training_set, separate, set_names, task_facts

TOGETHER = "+"  # between tasks that are trained together; commas are between values
ROWS = {"task", "set", "mix", "where", "query"}
# the metric and its rows, too: scores by different ones cannot be compared
FIXED = PLACES | ROWS | {"seed", "report_to", "metric_for_best_model", "held_out"}
SWEPT = sorted(TrainConfig.model_fields.keys() - FIXED)


Grid = Mapping[str, Sequence[Any]]
Sets = dict[tuple[str, ...], tuple[LogitSet, Facts]]  # by `set_names`


@dataclass(frozen=True)
class Trial:
    """One student of a sweep: the values tried with its seed among them, and the configuration they make."""

    values: dict[str, Any]
    config: TrainConfig
    folder: Path

    @property
    def point(self) -> tuple[Any, ...]:
        """The values that were tried, in the order of the grid, without the seed."""
        return tuple(value for name, value in self.values.items() if name != "seed")

    @property
    def is_finished(self) -> bool:
        """Whether its run folder holds the result."""
        path = self.folder / RUN_RECORD
        return path.exists() and read_run_record(path)["state"] == "finished"


def make_trials(
    config: SweepConfig, grid: Grid, folder: Path, make: Callable[[TrainConfig], TaskConfig]
) -> list[Trial]:
    """All students that a sweep asks for.

    Args:
        config: fixed settings and seeds; its recipe's settings are in it already.
        grid: what is tried, see `read_grid`.
        folder: the sweep's.
        make: the architecture that a student's flags ask for.

    Raises:
        ConfigError: naming everything that is wrong with the grid, before anything is trained.
    """
    fixed = config.model_dump(include=config.model_fields_set & TrainConfig.model_fields.keys() - {"json_output"})
    trials, problems = [], _wrong_values(grid, fixed)
    raise_all(ConfigError, "--grid", problems)
    for point in product(*grid.values()):
        for seed in range(config.seed, config.seed + config.seeds):
            try:
                made = TrainConfig.from_flags(**fixed | dict(zip(grid, point, strict=True)) | {"seed": seed})
                source_sha256(made.init_from, make(made))
            except ConfigError as error:
                problems.append(str(error).removeprefix("wrong flags: "))
                continue
            told = made.model_dump(mode="json", include={*grid, "seed"}) | {"tasks": tasks_text(made)}
            values = {name: told[name] for name in (*grid, "seed")}
            run = folder / run_name(values)
            trials.append(Trial(values, made.model_copy(update={"output_dir": run}), run))
    raise_all(ConfigError, "--grid", sorted(set(problems)))
    again = [name for name, count in Counter(trial.folder.name for trial in trials).items() if count > 1]
    if again:
        raise ConfigError(f"--grid: a value is there twice, which gives {again[0]} twice")
    return trials


def run_name(values: dict[str, Any]) -> str:
    """The folder of a run in its sweep's, by the values tried and the seed."""
    return ",".join(f"{key}={value}" for key, value in values.items()).replace("/", "-")


def tasks_text(config: TrainConfig) -> str:
    """The sets that are trained together, by their names."""
    return TOGETHER.join(Path(name).resolve().name for name in config.task_names)


def _wrong_values(grid: Grid, fixed: dict[str, Any]) -> list[str]:
    problems = []
    for name, values in grid.items():
        for value in values:
            try:
                TrainConfig.from_flags(**fixed | {name: value})
            except ConfigError as error:
                problems.append(str(error).removeprefix("wrong flags: "))
    return problems


def read_grid(config: SweepConfig, typed: Set[str] = frozenset()) -> Grid:
    """The values to try, by setting.

    Args:
        config: the flags.
        typed: those that were given; they beat the grid of a recipe.

    Raises:
        ConfigError: naming every setting that cannot be tried.
    """
    if config.grid:
        pairs = [entry.partition("=") for entry in config.grid]
        grid: dict[str, list[Any]] = {name.replace("-", "_"): values.split(",") for name, _, values in pairs}
    else:
        recipe_grid = load_recipe(config.recipe).grid if config.recipe else {}
        beaten = typed | ({"tasks"} if typed & SETS else set())
        grid = {name: values for name, values in recipe_grid.items() if name not in beaten}
    problems = [f"{name!r} cannot be swept: {did_you_mean(str(name), SWEPT)}" for name in grid if name not in SWEPT]
    problems += [f"{name}: no values; write {name}=VALUE,VALUE" for name, values in grid.items() if "" in values]
    problems += [f"{name} is given as a flag, too" for name in grid if name in typed]
    names = Counter(entry.partition("=")[0].replace("-", "_") for entry in config.grid)
    problems += [f"{name} is there twice; give all its values at once" for name, count in names.items() if count > 1]
    raise_all(ConfigError, "--grid", problems)
    if "tasks" in grid:
        raise_all(ConfigError, "--grid", _wrong_tasks([str(value).split(TOGETHER) for value in grid["tasks"]]))
        grid["tasks"] = [str(value).replace(TOGETHER, ",") for value in grid["tasks"]]
    return grid


def _wrong_tasks(values: Sequence[Sequence[str]]) -> list[str]:
    problems = [f"tasks={TOGETHER.join(names)}: a name is missing beside {TOGETHER}" for names in values if "" in names]
    sets = [sorted(names) for names in values]
    again = {TOGETHER.join(names) for names in sets if sets.count(names) > 1}
    return problems + [f"tasks: {names} is there twice, maybe in another order" for names in sorted(again)]


def open_all(config: TrainConfig, grid: Grid) -> Sets:
    """Opens the sets of all students, with what they decide of them.

    Raises:
        ConfigError: naming flags that are not for several tasks, and names that two sets have.
        DataError: if there is no such set, or it has no training rows.
    """
    trained = [config.model_copy(update={"tasks": tasks}) for tasks in grid.get("tasks", [config.tasks])]
    opened = {set_names(one): open_training_set(one) for several in trained for one in separate(several)}
    by_name: dict[str, list[str]] = {}
    for one in opened.values():
        by_name.setdefault(one.name, []).append(str(one.root.resolve()))
    raise_all(ConfigError, "--tasks", [_of_one_name(name, roots) for name, roots in by_name.items() if len(roots) > 1])
    return {key: (one, task_facts(one)) for key, one in opened.items()}


def _of_one_name(name: str, roots: list[str]) -> str:
    """Why sets of one name cannot be in one sweep, where a task's folder is called as its set."""
    if len(set(roots)) == 1:
        return f"{name} is named by two paths; write both in the same way"
    return f"{name} is the name of {' and of '.join(roots)}; rename one of these folders"


def build_swept_config(sets: Sets, config: TrainConfig) -> TaskConfig:
    """The architecture of a student, of several tasks that of the first.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
    """
    configs = separate(config)
    made: TaskConfig
    opened, facts = zip(*(sets[set_names(one)] for one in configs), strict=True)
    if config.tasks is None:
        made, giver = build_student_config(config, opened[0], facts[0])[0], opened[0].sets[0]
    else:
        made, giver = build_joint_configs(configs, opened, facts)[0][1], opened[vectors_source(opened)]
    starts_from_teacher(config, giver.root, giver.record)
    return made


def settings_of(config: TrainConfig, sets: Sets) -> dict[str, Any]:
    """What of the sets decides the students, of several tasks by TASK.SETTING.

    Which ``tasks`` they are is said where it is the same for all students.
    """
    opened = [one for one, _ in sets.values()]
    if config.task is not None or config.set:
        return _of_set(config, opened[0])
    tasks = {"tasks": [one.name for one in opened] if config.tasks else None}
    return tasks | {f"{one.name}.{key}": value for one in opened for key, value in _of_set(config, one).items()}


def is_of_a_task(setting: str) -> bool:
    """Whether a setting is one of several tasks', see `settings_of`."""
    return "." in setting


def _of_set(config: TrainConfig, logit_set: LogitSet) -> dict[str, Any]:
    first = logit_set.sets[0]  # runs that it got token vectors in between are not to be compared
    vectors = None if config.init == "noise" or config.init_from else read_token_vectors(first.root, first.record)
    return {
        "token_vectors_sha256": vectors.sha256 if vectors else None,
        "logit_set_fingerprints": [one.record.fingerprint for one in logit_set.sets],
        "mix": mix_of(logit_set),
    }
