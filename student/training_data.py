"""What a student is trained from: one logit set or several, opened, checked and read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.query.mixture import Comparison, Mixture, compare_teachers, comparison_lines
from pipeline.sets.reader import LogitSet, find_set
from pipeline.sets.token_vectors import VocabularyVectors, read_token_vectors
from pipeline.settings import flag_name
from pipeline.tasks.task import TRAIN
from pipeline.training.batches import HELD_OUT
from student.bert_start import BertStart
from student.config import TrainConfig
from student.kinds import KINDS, kind_of_set
from student.kinds.kind import TaskKind
from student.layer_flags import LayerFlags
from student.model.architecture import Facts
from student.start import starts_from_teacher


@dataclass(frozen=True)
class TrainingData:
    """The rows of a logit set, read once for any number of students.

    Attributes:
        kind: of its rows.
        logit_set: opened by the kind.
        query: the SQL text that chose the training rows; None if they are all.
        splits: the rows of each split, as the kind reads them.
        facts: what the set decides of students.
        teachers: of several, how they compare.
    """

    kind: TaskKind[Any, Any, Any]
    logit_set: Any
    query: str | None
    splits: dict[str, Any]
    facts: Facts
    teachers: dict[str, Comparison]

    def start(self, config: TrainConfig) -> VocabularyVectors | None:
        """What a student's vectors start from, of several sets the first one's; None if from something else.

        Raises:
            ConfigError: if they shall start from token vectors, and there are none.
            IntegrityError: if the file was changed.
        """
        first = self.logit_set.sets[0]
        from_another = config.init_from or config.init_vectors
        from_teacher = starts_from_teacher(config, first.root, first.record) and from_another is None
        return self.token_vectors if from_teacher else None

    @cached_property
    def token_vectors(self) -> VocabularyVectors | None:
        """What the teacher says of each vocabulary entry, of several sets the first one's; None if that is not stored.

        Raises:
            IntegrityError: if the file was changed.
        """
        first = self.logit_set.sets[0]
        return read_token_vectors(first.root, first.record)


Rows = dict[tuple[str, ...], TrainingData]  # by `set_names`


def separate(config: TrainConfig) -> list[TrainConfig]:
    """The configuration of each student that is trained: of ``tasks`` one for each set, else the only one.

    Raises:
        ConfigError: naming the flags that are not for several tasks.
    """
    if config.tasks is None:
        return [config]
    raise_all(ConfigError, "wrong flags", _not_for_tasks(config))
    return [config.model_copy(update={"tasks": None, "set": (name,)}) for name in config.task_names]


def load_data(config: TrainConfig, known: Rows | None = None) -> list[TrainingData]:
    """Reads the rows of each student's set, for flags that are known to fit.

    Args:
        config: the flags.
        known: rows that have been read; what is read is put there, too.

    Raises:
        DataError: if there is no such set, or it has no rows to train on.
    """
    rows: Rows = {} if known is None else known
    configs = separate(config)
    for one in configs:
        if set_names(one) not in rows:
            rows[set_names(one)] = read_data(one, open_training_set(one))
    return [rows[set_names(one)] for one in configs]


def set_names(config: TrainConfig) -> tuple[str, ...]:
    """The sets that a student is trained from, as the flags name them."""
    return config.set or (config.task or "",)


def read_data(config: TrainConfig, logit_set: LogitSet) -> TrainingData:
    """Reads the rows of an open set, for flags that are known to fit."""
    kind = KINDS[logit_set.record.kind]
    splits = {
        split: kind.read_dev(logit_set, split) if split != TRAIN else kind.read_training_rows(config, logit_set)
        for split in logit_set.splits
    }
    teachers = compare_teachers(logit_set) if isinstance(logit_set, Mixture) else {}
    for line in comparison_lines(teachers):
        console.note(line)
    query = kind.training_query(config, logit_set)
    return TrainingData(kind, logit_set, query, splits, task_facts(logit_set), teachers)


def build_student_config(config: TrainConfig, logit_set: LogitSet, facts: Facts) -> tuple[Any, BertStart | None]:
    """The architecture that the flags ask for, and what a bert starts from; errors as of `TaskKind.build_config`."""
    return KINDS[logit_set.record.kind].build_config(config, logit_set, facts)


def task_facts(logit_set: LogitSet) -> Facts:
    """What a set decides of the students that can be trained from it."""
    return KINDS[logit_set.record.kind].task_facts(logit_set)


def open_training_set(config: TrainConfig) -> LogitSet:
    """Opens the set that a configuration names, or several as one.

    Raises:
        ConfigError: if flags contradict each other, or the sets do.
        DataError: if there is no such set, it has no train split, or the rows of several are not the same.
    """
    raise_all(ConfigError, "wrong flags", _contradictions(config))
    paths = [find_set(name, config.store) for name in set_names(config)]
    logit_set: LogitSet = kind_of_set(paths[0]).open_sets(paths, config.mix, config.allow_unverified)
    if TRAIN not in logit_set.record.splits:
        raise DataError(f"{logit_set.root}: has no train split; its splits are {', '.join(logit_set.record.splits)}")
    return logit_set


def default_name(sets: Sequence[LogitSet]) -> str:
    """Name of a folder for what is trained from sets."""
    return "+".join(one.name for one in sets)


def _contradictions(config: TrainConfig) -> list[str]:
    problems = []
    if bool(config.set) == (config.task is not None):
        problems.append("what to train from: give --task NAME or --set SET, one of them")
    if config.query is not None and config.where is not None:
        problems.append("--where: --query has conditions of its own; give one of them")
    if config.query is not None and config.mix is not None:
        problems.append("--mix: --query mixes by itself: select mix([a.logits, b.logits], [0.7, 0.3]) as logits …")
    if config.mix is not None and len(config.set) < 2:
        problems.append(f"--mix {config.mix}: needs several teachers; repeat --set for each set")
    if config.init_vectors is not None and not config.init_vectors.is_file():
        problems.append(f"--init-vectors {config.init_vectors}: there is no such file")
    return problems


def _not_for_tasks(config: TrainConfig) -> list[str]:
    given = [name for name in LayerFlags.model_fields if getattr(config, name)]
    problems = [f"{flag_name(name)}: layers are stored for one task; leave out --tasks" for name in given]
    if not config.task_names:
        problems.append(f"--tasks {config.tasks!r}: names no set")
    if config.task is not None or config.set:
        problems.append("--tasks: names the sets; leave --task and --set out")
    if config.query is not None:
        problems.append("--query: chooses rows of one task; --where is for all of --tasks")
    if config.mix is not None:
        problems.append("--mix: is for several teachers of one task, not for --tasks")
    return problems


@dataclass(frozen=True)
class StudentTraining:
    """A student that is to be trained.

    Attributes:
        config: the flags, those alone that fit the task.
        student_config: the architecture.
        data: the rows.
        folder: where its weights are kept.
        layers: what a bert starts from.
    """

    config: TrainConfig
    student_config: Any
    data: TrainingData
    folder: Path
    layers: BertStart | None = None

    @property
    def name(self) -> str:
        """Name of its set."""
        return str(self.data.logit_set.name)

    @property
    def kind(self) -> TaskKind[Any, Any, Any]:
        """The kind of its rows."""
        return self.data.kind

    @cached_property
    def splits(self) -> dict[str, Any]:
        """The rows in the form that the student reads; of the training rows some as ``held-out``, if that is asked for.

        Raises:
            DataError: if none would be held out, or none left.
        """
        splits = self.data.splits
        if self.config.held_out is not None:
            train, held_out = self.kind.hold_out(splits["train"], self.student_config, self.config.held_out)
            others = {split: rows for split, rows in splits.items() if split != "train"}
            splits = {"train": train, HELD_OUT: held_out} | others  # the first to be scored decides
        return {split: self.kind.as_read(rows, self.student_config) for split, rows in splits.items()}

    @property
    def dev_splits(self) -> dict[str, Any]:
        """Those of `splits` that the student is scored on."""
        return {split: examples for split, examples in self.splits.items() if split != "train"}
