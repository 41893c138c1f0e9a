"""Opens, checks and reads the logit sets of a student."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.errors import ConfigError, DataError, did_you_mean
from pipeline.query.mixture import Comparison, Mixture, compare_teachers, comparison_lines
from pipeline.sets.open import LogitSet, find_set
from pipeline.sets.token_vectors import VocabularyVectors, read_token_vectors
from pipeline.tasks.task import TRAIN
from pipeline.training.batches import HELD_OUT
from pipeline.training.best_epoch import may_select, share_to_select
from student.encoders.specs import Bert, EncoderSpec
from student.initial_weights.bert import BertStart
from student.initial_weights.vectors import StartVectors, given_vectors, pretrained_for
from student.lessons import KINDS, kind_of_set
from student.lessons.lesson import TaskLesson
from student.model.architecture import Facts
from student.settings import INITS, Start, TrainSettings
from student.source_settings import OneTask, Sets, SeveralTasks, Source
from student.vocabulary import in_vocabulary


@dataclass(frozen=True)
class TrainingData:
    """The rows of a logit set, read once for any number of students.

    Attributes:
        kind: the kind of its rows.
        logit_set: opened by the kind.
        query: the SQL query that selected the training rows, or None for all rows.
        splits: the rows of each split, read by the kind.
        facts: the facts about the set on which students depend.
        teachers: the comparison of several teachers.
    """

    kind: TaskLesson[Any, Any, Any]
    logit_set: Any
    query: str | None
    splits: dict[str, Any]
    facts: Facts
    teachers: dict[str, Comparison]
    _grouped: dict[str | None, Any] = field(default_factory=dict, init=False)

    def grouped(self, column: str | None) -> Any:
        """Returns the training rows with the groups that are held out together. See `TaskLesson.with_groups`."""
        if column not in self._grouped:
            self._grouped[column] = self.kind.with_groups(self.logit_set, self.splits[TRAIN], column)
        return self._grouped[column]

    def start(self, spec: EncoderSpec, start: Start) -> StartVectors | None:
        """Returns the vectors that a student starts from: pretrained ones, or those of the first set. None: others.

        Raises:
            ConfigError: if the flags require vectors that the set does not have or fit.
            IntegrityError: if the file was changed.
        """
        given = given_vectors(spec, start, self.logit_set.sets[0])
        if given == "pretrained":
            return pretrained_for(self.logit_set.tokenizer_json())
        return self.token_vectors if given == "teacher" else None

    @cached_property
    def token_vectors(self) -> VocabularyVectors | None:
        """Returns the teacher's vector of each vocabulary entry from the first set, or None if it has no token vectors.

        Raises:
            IntegrityError: if the file was changed.
        """
        first = self.logit_set.sets[0]
        return read_token_vectors(first.root, first.record)


@dataclass(frozen=True)
class Rows:
    """The sets and rows that a sweep has read: sets by their names, and rows also by the hash of their tokenizer."""

    sets: dict[tuple[str, ...], LogitSet] = field(default_factory=dict)
    data: dict[tuple[tuple[str, ...], str], TrainingData] = field(default_factory=dict)


def separate(settings: TrainSettings) -> list[TrainSettings]:
    """Returns the settings of each student: for ``tasks`` one per set, otherwise a single one."""
    if not isinstance(settings.source, SeveralTasks):
        return [settings]
    return [settings.model_copy(update={"source": source}) for source in settings.source.each]


def load_data(settings: TrainSettings, known: Rows | None = None) -> list[TrainingData]:
    """Reads the rows of each student's set, after the flags were checked.

    Args:
        settings: the settings.
        known: rows that were read before. New rows are added.

    Raises:
        DataError: if there is no such set, or it has no rows to train on.
    """
    rows = known or Rows()
    sources = [source_of(one) for one in separate(settings)]
    # A sweep trains many students from the same set, and reading it takes longer than a small training.
    for source in sources:
        if source.names not in rows.sets:
            rows.sets[source.names] = open_training_set(source, settings.store, settings.allow_unverified)
    found = []
    sets = in_students_vocabulary(settings, [rows.sets[source.names] for source in sources])
    for source, logit_set in zip(sources, sets, strict=True):
        key = source.names, logit_set.tokenizer.sha256
        if key not in rows.data:
            rows.data[key] = read_data(source, logit_set)
        found.append(rows.data[key])
    return found


def in_students_vocabulary(settings: TrainSettings, sets: Sequence[LogitSet]) -> list[LogitSet]:
    """Returns the sets of a student, or of several with one encoder, whose rows are read in their vocabulary.

    Errors as in `in_vocabulary`.
    """
    needs_teachers = "--layer-loss" if settings.layer_losses else None
    needs_teachers = "--embedding bert" if isinstance(settings.encoder, Bert) else needs_teachers
    return in_vocabulary(sets, settings.vocabulary, settings.start.folder, needs_teachers)


def source_of(settings: TrainSettings) -> Source:
    """Returns the sets of one student.

    Raises:
        ConfigError: if neither flag is given.
    """
    if isinstance(settings.source, OneTask | Sets):
        return settings.source
    raise ConfigError("no set to train on: give either --task NAME or --set SET")


def read_data(source: Source, logit_set: LogitSet) -> TrainingData:
    """Reads the rows of an open set, after the flags were checked."""
    kind, chosen = KINDS[logit_set.record.kind], source.chosen
    splits = {split: kind.read(logit_set, split, chosen if split == TRAIN else None) for split in logit_set.splits}
    # With several teachers, their agreement is shown first: a mixture of contradicting teachers is often a mistake.
    teachers = compare_teachers(logit_set) if isinstance(logit_set, Mixture) else {}
    for line in comparison_lines(teachers):
        console.note(line)
    query = kind.training_query(chosen, logit_set)
    return TrainingData(kind, logit_set, query, splits, task_facts(logit_set), teachers)


def build_student_config(settings: TrainSettings, logit_set: LogitSet, facts: Facts) -> tuple[Any, BertStart | None]:
    """Returns the architecture that the settings describe, and the start of a bert.

    Errors as in `TaskLesson.build_config`.
    """
    start = settings.start
    if start.path is not None and not start.path.exists():
        raise ConfigError(f"--init {start.path}: no such folder or file. {did_you_mean(str(start.path), INITS)}")
    return KINDS[logit_set.record.kind].build_config(settings, logit_set, facts)


def task_facts(logit_set: LogitSet) -> Facts:
    """Returns the facts of a set that decide the architecture of its students."""
    return KINDS[logit_set.record.kind].task_facts(logit_set)


def open_training_set(source: Source, store: Path, allow_unverified: bool = False) -> LogitSet:
    """Opens the set of a source, or several sets as one.

    Raises:
        ConfigError: if several sets contradict each other.
        DataError: if there is no such set, it has no train split, or the rows of several are not the same.
    """
    # All sets are found before the first is opened, so a wrong name is reported at once.
    paths = [find_set(name, store) for name in source.names]
    logit_set: LogitSet = kind_of_set(paths[0]).open_sets(paths, source.mix, allow_unverified)
    if TRAIN not in logit_set.record.splits:
        raise DataError(f"{logit_set.root}: has no train split. Its splits are {', '.join(logit_set.record.splits)}")
    return logit_set


def with_rows_to_select(settings: TrainSettings, config: Any, data: TrainingData) -> TrainSettings:
    """Returns settings that hold out training rows to select the best epoch, if only a test split has gold."""
    if settings.best.held_out is not None:
        return settings
    num_scored = {split: int(data.kind.is_scored(rows, config).sum()) for split, rows in data.splits.items()}
    num_rows, scored = num_scored.pop(TRAIN), [split for split, count in num_scored.items() if count]
    share = share_to_select(f"{data.logit_set.root}: ", scored, num_rows)
    if share is None:
        return settings
    return settings.model_copy(update={"best": settings.best.model_copy(update={"held_out": share})})


@dataclass(frozen=True)
class StudentTraining:
    """A student to train.

    Attributes:
        settings: only the settings that fit the task.
        student_config: the architecture.
        data: the rows.
        num_rows: training rows of all students that are trained together.
        folder: the folder of its weights.
        layers: the initial layers of a bert.
    """

    settings: TrainSettings
    student_config: Any
    data: TrainingData
    num_rows: int
    folder: Path
    layers: BertStart | None = None

    @property
    def name(self) -> str:
        """Name of its set."""
        return str(self.data.logit_set.name)

    @property
    def kind(self) -> TaskLesson[Any, Any, Any]:
        """The kind of its rows."""
        return self.data.kind

    @property
    def splits(self) -> dict[str, Any]:
        """The rows in the student's form, with some training rows as ``held-out`` if a share is given.

        Raises:
            DataError: if no row would be held out, or no row would be left.
        """
        return self._parts[0]

    @property
    def calibration_rows(self) -> Any | None:
        """Training rows that only calibrate the student, in the form that it reads, or None if none do."""
        return self._parts[1]

    @cached_property
    def _parts(self) -> tuple[dict[str, Any], Any | None]:
        kind, config, best = self.kind, self.student_config, self.settings.best
        others = {split: rows for split, rows in self.data.splits.items() if split != TRAIN}
        train, number_of = self.data.splits[TRAIN], self.settings.calibration.number_of
        if best.held_out is not None or number_of(int(kind.is_scored(train, config).sum()), are_held_out=False):
            train = self.data.grouped(best.group)
        held_out, for_calibration = None, None
        # Rows are held out before they are converted, because the choice depends on the stored keys.
        if best.held_out is not None:
            train, held_out = kind.hold_out(train, config, best.held_out)
            # The first split that is scored decides the best epoch, so held-out rows come before the dev splits.
            others = {HELD_OUT: held_out} | others
        # The first split also fits thresholds, so a test split comes last.
        others = {split: others[split] for split in sorted(others, key=lambda name: not may_select(name))}
        num_scored = int(kind.is_scored(train, config).sum())
        count = number_of(num_scored, are_held_out=best.held_out is not None)
        if count:
            train, for_calibration = kind.hold_out(train, config, count / num_scored)
        elif self.settings.calibration.calibration_rows is None:
            for_calibration = held_out
        read = {split: kind.as_read(rows, config) for split, rows in ({TRAIN: train} | others).items()}
        return read, None if for_calibration is None else kind.as_read(for_calibration, config)

    @property
    def dev_splits(self) -> dict[str, Any]:
        """The splits for scores."""
        return {split: examples for split, examples in self.splits.items() if split != "train"}
