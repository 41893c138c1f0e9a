"""The sets that the students of a sweep are trained from, each opened once."""

from typing import Any

from pipeline.errors import ConfigError, raise_all
from pipeline.query.mixture import mix_of
from pipeline.sets.reader import ExampleSet
from pipeline.sets.token_vectors import read_token_vectors
from student.config import TrainConfig
from student.model.architecture import Facts, StudentConfig
from student.sweep.grid import Grid
from student.train.initialize import starts_from_teacher
from student.train.tasks import designed_together, vectors_giver
from student.train.training_data import apart, designed, open_training_set, set_names, task_facts

Sets = dict[tuple[str, ...], tuple[ExampleSet, Facts]]  # by `set_names`


def open_all(config: TrainConfig, grid: Grid) -> Sets:
    """Opens the sets of all students, with what they decide of them.

    Raises:
        ConfigError: naming flags that are not for several tasks, and names that two sets have.
        DataError: if there is no such set, or it has no training rows.
    """
    trained = [config.model_copy(update={"tasks": tasks}) for tasks in grid.get("tasks", [config.tasks])]
    opened = {set_names(one): open_training_set(one) for several in trained for one in apart(several)}
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


def design_from(sets: Sets, config: TrainConfig) -> StudentConfig:
    """The architecture of a student, of several tasks that of the first.

    Raises:
        ConfigError: naming every flag that does not fit, and sets that cannot share an encoder.
    """
    configs = apart(config)
    opened, facts = zip(*(sets[set_names(one)] for one in configs), strict=True)
    if config.tasks is None:
        made, giver = designed(config, opened[0], facts[0])[0], opened[0].sets[0]
    else:
        made, giver = designed_together(configs, opened, facts)[0][1], opened[vectors_giver(opened)]
    starts_from_teacher(config, giver.root, giver.record)
    return made


def settings_of(config: TrainConfig, sets: Sets) -> dict[str, Any]:
    """What of the sets decides the students, of several tasks by TASK.SETTING.

    Which ``tasks`` they are is said where it is the same for all students.
    """
    opened = [one for one, _ in sets.values()]
    if config.task is not None or config.logits:
        return _of_set(config, opened[0])
    tasks = {"tasks": [one.name for one in opened] if config.tasks else None}
    return tasks | {f"{one.name}.{key}": value for one in opened for key, value in _of_set(config, one).items()}


def is_of_a_task(setting: str) -> bool:
    """Whether a setting is one of several tasks', see `settings_of`."""
    return "." in setting


def _of_set(config: TrainConfig, logit_set: ExampleSet) -> dict[str, Any]:
    first = logit_set.sets[0]  # runs that it got token vectors in between are not to be compared
    vectors = None if config.init == "noise" or config.init_from else read_token_vectors(first.root, first.record)
    return {
        "token_vectors_sha256": vectors.sha256 if vectors else None,
        "logit_set_fingerprints": [one.record.fingerprint for one in logit_set.sets],
        "mix": mix_of(logit_set),
    }
