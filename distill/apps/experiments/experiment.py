"""The YAML file that lists the sets and students of a comparison."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from pipeline import settings
from pipeline.errors import ConfigError, did_you_mean, unreadable
from pipeline.parsing import parse_model, parse_settings, parse_yaml
from student.settings import TrainSettings
from teacher.finetune_settings import FinetuneSettings
from teacher.settings import DumpSettings

Settings = dict[str, Any]
FINETUNED = {"model_name_or_path": "an encoder", "output_dir": "a folder"}  # placeholders for required settings
PLACES = ("task", "manifest", "data", "model_name_or_path", "name", "store", "set", "output_dir", "seed", "plan")
SOURCE = {"task": "a set"}  # placeholder for a setting that every student requires
SET = "set"
SHIPPED = ("glue", "papers")
FROM = "from"  # key of a teacher: the task whose teacher it starts from
# This share of the training rows chooses a teacher's epoch and seed. Dev rows would make its scores optimistic.
HELD_OUT = 0.1


class Parts(BaseModel):
    """Settings of teachers, sets and students."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    teacher: Settings = Field(default_factory=dict)
    sets: dict[str, Settings] = Field(default_factory=dict)
    students: dict[str, Settings] = Field(default_factory=dict)

    @field_validator("teacher")
    @classmethod
    def _from_a_task(cls, value: Settings) -> Settings:
        # Teacher settings are not typed here, since most of them are flags of another command.
        if not isinstance(value.get(FROM), str | None):
            raise ValueError(f"`{FROM}` is the name of a task")
        return value


class Experiment(Parts):
    """The content of the file, with settings of all tasks and of single ones."""

    tasks: dict[str, Parts] = Field(default_factory=dict)

    def teacher_of(self, task: str) -> Settings:
        """Returns the settings of a task's teacher."""
        return self.teacher | self.tasks.get(task, Parts()).teacher

    def start_of(self, task: str) -> str | None:
        """Returns the task whose teacher is the start of this task's teacher, or None if that is the encoder."""
        return self.teacher_of(task).get(FROM)

    def without_teacher(self, task: str) -> Self:
        """Returns the experiment without the settings of this task's teacher."""
        own = self.tasks[task].model_copy(update={"teacher": {}})
        return self.model_copy(update={"tasks": self.tasks | {task: own}})

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.sets or not self.students:
            raise ValueError("name at least one of `sets` and one of `students`")
        for names in (self.sets, self.students):
            # Two names such as "CBOW+" and "cbow" would share a folder and overwrite each other.
            if len({as_file(name) for name in names} - {""}) < len(names):
                raise ValueError(f"{', '.join(names)}: names must differ in letters or digits, they become folders")
        return self


class TaskParts:
    """An experiment's settings of one task, as flags of the three commands.

    Args:
        experiment: the content of the file.
        task: the task's name.
        context: the file, for messages.

    Raises:
        ConfigError: naming a setting that its command does not support.
    """

    def __init__(self, experiment: Experiment, task: str, context: str) -> None:
        own = experiment.tasks.get(task, Parts())
        teacher = {k: v for k, v in experiment.teacher_of(task).items() if k != FROM}
        self.teacher = _flags(FinetuneSettings, {"held_out": HELD_OUT} | teacher, f"{context}: teacher", FINETUNED)
        self.sets = {
            name: _flags(DumpSettings, values, f"{context}: sets: {name}")
            for name, values in _merged(experiment.sets, own.sets).items()
        }
        self.students: dict[str, list[str]] = {}
        self.set_of: dict[str, str] = {}
        for name, values in _merged(experiment.students, own.students).items():
            place = f"{context}: students: {name}"
            wanted = values.get(SET)
            chosen = self.set_of[name] = next(iter(self.sets)) if wanted is None else str(wanted)
            if chosen not in self.sets:
                raise ConfigError(f"{place}: no set {chosen!r}. {did_you_mean(chosen, self.sets)}")
            self.students[name] = _flags(TrainSettings, {k: v for k, v in values.items() if k != SET}, place, SOURCE)


def load_experiment(name: str) -> Experiment:
    """Reads an experiment of the package, or a file.

    Raises:
        ConfigError: if it cannot be read, or naming every key that is wrong.
    """
    context = f"--experiment {name}"
    path = files("distill.apps.experiments").joinpath(f"{name}.yaml") if name in SHIPPED else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{context}: {unreadable(error)}. {did_you_mean(name, SHIPPED)}") from error
    return parse_model(Experiment, parse_yaml(text, context), context)


def as_file(name: str) -> str:
    """Returns the name of a folder for a name that people read."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _merged(general: dict[str, Settings], own: dict[str, Settings]) -> dict[str, Settings]:
    return {name: general.get(name, {}) | own.get(name, {}) for name in general | own}


def _flags(kind: type[settings.Settings], values: Settings, context: str, needed: Settings | None = None) -> list[str]:
    """Returns the settings as flags of a command. The settings of a recipe are written out."""
    wrong = [name for name in values if name in PLACES]
    if wrong:
        raise ConfigError(
            f"{context}: {wrong[0]!r} cannot be set in an experiment, because the command sets it. Remove it."
        )
    made = parse_settings(kind, values | (needed or {}), context)
    asked = settings.given(made).keys() - {"recipe", *PLACES}
    return settings.as_flags(made, asked)
