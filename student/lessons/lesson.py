"""The interface of a kind of row for students of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import ConfigError, FingerprintMismatchError
from pipeline.sets.open import LogitSet
from pipeline.tasks.task import Metric
from pipeline.tasks.temperature import Calibration, fit_calibration
from pipeline.text.text_to_ids import TextReader
from pipeline.training.joint import BatchedTask
from student.data import Rows
from student.initial_weights.bert import BertStart
from student.model.architecture import Facts, TaskConfig
from student.model.student import TaskStudent
from student.settings import TrainSettings
from student.source_settings import Query, Where

L = TypeVar("L", bound=LogitSet)
R = TypeVar("R", bound=Rows)
S = TypeVar("S", bound=TaskStudent)


class TaskLesson(ABC, Generic[L, R, S]):
    """A kind of row: opens and reads its sets, and makes, trains and scores students.

    The methods that are not abstract suit a kind whose students learn from every row of a single set.

    Attributes:
        student: the class of the model.
        set_type: the class of its opened sets.
        task: makes the task of the training loop from the settings, the student, which is trained in place, its rows by
            split (``train``, and dev splits), the optimizer that receives the gradients of the used rows of tables, the
            loss of layers or None, and a function that writes the student to a folder.
    """

    student: ClassVar[type[TaskStudent]]
    set_type: ClassVar[type[LogitSet]]
    task: ClassVar[Callable[..., BatchedTask]]

    def open_sets(self, paths: Sequence[Path], mix: str | None = None, allow_unverified: bool = False) -> L:
        """Opens a set, or several as one.

        Args:
            paths: folders of sets.
            mix: how several are mixed.
            allow_unverified: open sets that are complete but not verified, too.

        Raises:
            ConfigError: if one is of another kind, or they cannot be mixed.
            IntegrityError: if one of them is not a usable set.
        """
        if len(paths) > 1 or mix is not None:
            kind, count = self.set_type.row_kind.name, f"{len(paths)} sets" if len(paths) > 1 else f"--mix {mix}"
            raise ConfigError(f"--set: students of {kind} support only one set, but {count} are given. Give one.")
        opened: Any = self.set_type.open(paths[0], allow_unverified)
        return opened  # type: ignore[no-any-return]

    def task_facts(self, logit_set: L) -> Facts:
        """Returns the facts about a set that its students depend on."""
        record = logit_set.record
        return {
            "task": record.dataset_name,
            "target": record.target,
            "metrics": record.metrics,
            "vocabulary_size": logit_set.tokenizer.vocabulary_size,
            "pad_id": logit_set.tokenizer.pad_id,
            "tokenizer_sha256": logit_set.tokenizer.sha256,
            "max_seq_length": record.max_seq_length,
        }

    @abstractmethod
    def build_config(self, settings: TrainSettings, logit_set: L, facts: Facts) -> tuple[TaskConfig, BertStart | None]:
        """Returns the architecture that the settings describe, and the layers that a bert starts from.

        Raises:
            ConfigError: naming every flag that does not fit.
            IntegrityError: if these layers are damaged.
        """

    def training_query(self, chosen: Where | Query | None, logit_set: L) -> str | None:
        """Returns the SQL query of the training rows, or None for all of them."""
        return None

    @abstractmethod
    def read(self, logit_set: L, split: str, chosen: Where | Query | None = None) -> R:
        """Returns the rows of a split, for training or for scores.

        Args:
            logit_set: the set.
            split: the split.
            chosen: which training rows are read. Default: all.
        """

    def of_source(self, rows: pa.Table, reader: TextReader, config: Any) -> R:
        """Returns the rows of a checked source as a student reads them. They have no teacher.

        Raises:
            ConfigError: if files of rows of this kind cannot be read.
        """
        raise ConfigError(f"--data: students of {self.set_type.row_kind.name} are evaluated on logit sets. Use --set.")

    @abstractmethod
    def read_first(self, logit_set: L, split: str, number: int) -> R:
        """Returns at most so many first rows of a split, for measuring speed."""

    @abstractmethod
    def row_hashes(self, logit_set: L, rows: R) -> dict[str, str]:
        """Returns ``rows_sha256`` of the keys of training rows, and ``logits_sha256`` of their targets."""

    def as_read(self, rows: R, config: Any) -> R:
        """Returns rows in the form for a student of an architecture."""
        return rows

    def scored(self, logit_set: L, rows: R) -> R:
        """Returns rows for scores: without logits where these are gold's, because gold is not a perfect teacher."""
        return rows.without_teacher() if all(one.record.teacher.is_gold for one in logit_set.sets) else rows

    @abstractmethod
    def is_scored(self, rows: R, config: TaskConfig) -> Bools:
        """Which rows can be held out [N]: those that have gold and are no variants."""

    def with_groups(self, logit_set: L, rows: R, column: str | None) -> R:
        """Returns a set's training rows with their groups: near copies, or rows with the same value in a kept column.

        Without groups, as here, each row is held out by itself.

        Raises:
            ConfigError: if the set keeps no such column.
        """
        return rows

    @abstractmethod
    def hold_out(self, rows: R, config: TaskConfig, share: float) -> tuple[R, R]:
        """Divides training rows into rows for training and held-out rows with gold.

        Raises:
            DataError: if no row would be held out, or no row would be left.
        """

    @abstractmethod
    def renumber(self, rows: R, active: Ints) -> R:
        """Returns rows in the ids of a student with only the active rows of the tables."""

    @abstractmethod
    def num_without_gold(self, rows: R, config: TaskConfig) -> int:
        """Returns how many rows learn from the teacher although the flags give it no weight."""

    def check_readable(self, config: Any, logit_set: L) -> None:
        """Raises FingerprintMismatchError if a student of an architecture does not support a set."""
        if logit_set.record.target != config.target:
            raise FingerprintMismatchError(f"{logit_set.root}: has other labels than the student")

    @abstractmethod
    def student_logits(self, student: S, rows: R) -> Floats:
        """Runs a student over rows. Returns float32 logits in their order."""

    @abstractmethod
    def gold(self, rows: R) -> tuple[Ints, Floats]:
        """The gold of each row of `student_logits`: labels and scores, see `gold_arrays`."""

    def fit_calibration(self, student: S, rows: R) -> Calibration | None:
        """What makes probabilities of a student's logits, by rows that it was not trained on."""
        return fit_calibration(student.config.target, self.student_logits(student, rows), *self.gold(rows))

    @abstractmethod
    def evaluate_split(
        self, student: S, rows: R, bias_C: Floats | None = None, own: Collection[Metric] | None = None
    ) -> dict[str, Any]:
        """All results of `student.evaluate.evaluate` for one split, of rows without a teacher those that need none.

        Args:
            student: the student on its device.
            rows: the rows of the split.
            bias_C: added to the logits before labels are chosen.
            own: the task's metrics, without an additional one that only chose the best epoch. Default: the student's
                metrics.
        """
