"""Settings of the sets and rows that a student is trained on, and of held-out rows, without torch."""

from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from pipeline.errors import DataError
from pipeline.parsing import names_of
from pipeline.settings import Settings
from pipeline.shared_settings import PLACE, HeldOutFlags
from pipeline.tasks.task import Metric

TEACHER, SHIPPED = "teacher", "shipped"  # vocabularies of students
LEARNABLE = range(200, 200_001)  # tokens of a learned one
FORMERLY_LOGITS: Any = {"aliases": ["logits"]}  # the flag's name before it was --set
CALIBRATED_SHARE, MOST_CALIBRATED = 20, 1000  # one in so many rows, and at most so many
FEWEST_CALIBRATED = 50  # fewer would move probabilities by chance as much as they mend them


class Where(Settings):
    """The rows that match a condition."""

    chosen_by: ClassVar = "where"
    where: str = Field(description="SQL condition for training rows, such as 'margin(logits) < 0.9'.")


class Query(Settings):
    """The rows that a query selects."""

    chosen_by: ClassVar = "query"
    query: str = Field(
        description="SELECT that returns the training rows: source_row, variant, and optionally weight and logits."
    )


class OneTask(Settings):
    """The set of this name in the store. All or some of its rows."""

    chosen_by: ClassVar = "task"
    mix: ClassVar = None
    task: str = Field(description="Task: train on the logit set of this name in the store.", json_schema_extra=PLACE)
    chosen: Where | Query | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sets that a student is trained from."""
        return (self.task,)


class Sets(Settings):
    """A set by its path or its name, or the sets of several teachers for the same rows. All rows, or some."""

    chosen_by: ClassVar = "set"
    set: tuple[str, ...] = Field(
        min_length=1,
        description="Logit set to train on: a path, or a name in the store. Repeat for several teachers.",
        json_schema_extra=FORMERLY_LOGITS | PLACE,
    )
    mix: str | None = Field(
        None, description="Combination of several teachers: mean, weighted:0.7,0.3 or vote. Default: mean."
    )
    chosen: Where | Query | None = None

    @field_validator("set", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value  # a recipe names a single set without a list

    @property
    def names(self) -> tuple[str, ...]:
        """The sets that a student is trained from."""
        return self.set

    @model_validator(mode="after")
    def _mixes_several(self) -> Self:
        if self.mix is not None and isinstance(self.chosen, Query):
            raise ValueError("--mix: --query mixes by itself: select mix([a.logits, b.logits], [0.7, 0.3]) as logits …")
        if self.mix is not None and len(self.set) < 2:
            raise ValueError(f"--mix {self.mix}: needs several teachers. Repeat --set for each set.")
        return self


class SeveralTasks(Settings):
    """A set for each of several students that share one encoder."""

    chosen_by: ClassVar = "tasks"
    tasks: str = Field(
        description="Comma-separated sets (names or paths) to train on together, with one encoder and a head each.",
        json_schema_extra=PLACE,
    )
    chosen: Where | None = None

    @field_validator("tasks")
    @classmethod
    def _some(cls, value: str) -> str:
        if not names_of(value):
            raise ValueError(f"{value!r} contains no name of a set")
        return value

    @property
    def each(self) -> list[Sets]:
        """The set of each student."""
        return [Sets(set=(name,), chosen=self.chosen) for name in names_of(self.tasks)]


Source = OneTask | Sets


class BestEpoch(HeldOutFlags):
    """The metric and the rows that select the best epoch, whose weights are saved."""

    metric_for_best_model: Metric | None = Field(
        None, description="Metric that selects the best epoch, such as macro_f1. Default: the task's first."
    )


class CalibrationRows(Settings):
    """Which rows make probabilities calibrated."""

    calibration_rows: int | None = Field(
        None,
        ge=0,
        description=(
            "Training rows held out to calibrate probabilities. 0: none. Default: those of --held-out, or one in "
            "twenty with gold, at most 1,000, and none with fewer than 1,000 rows."
        ),
    )

    def number_of(self, num_rows: int, are_held_out: bool) -> int:
        """How many of the training rows with gold are held out to calibrate, where others are held out or not.

        Raises:
            DataError: if no others would be left.
        """
        asked = self.calibration_rows
        if asked is None:
            # One number is fitted, so more rows would take training data for digits that nobody needs.
            usual = min(num_rows // CALIBRATED_SHARE, MOST_CALIBRATED)
            return usual if usual >= FEWEST_CALIBRATED and not are_held_out else 0
        if asked >= num_rows:
            raise DataError(
                f"--calibration-rows {asked}: there are {num_rows:,} training rows with gold. Choose fewer."
            )
        return asked

    @model_validator(mode="after")
    def _is_enough(self) -> Self:
        if self.calibration_rows is not None and 0 < self.calibration_rows < FEWEST_CALIBRATED:
            raise ValueError(
                f"--calibration-rows {self.calibration_rows}: too few. Use at least {FEWEST_CALIBRATED}, or 0 for none"
            )
        return self


class VocabularyFlag(Settings):
    """The vocabulary that a student reads."""

    vocabulary: str | None = Field(
        None,
        description="Vocabulary that the student reads. teacher: that of the teacher. shipped: BERT's uncased one. A "
        "number: WordPiece with so many tokens, learned from the training texts, cased for labelled words. Default: "
        "that of a run given by --init, or the teacher's if it is WordPiece (always for a bert and --layer-loss), "
        "otherwise shipped if it has nearly all words, or 16000.",
    )

    @field_validator("vocabulary", mode="before")
    @classmethod
    def _is_a_vocabulary(cls, value: object) -> object:
        text = str(value)
        is_known = text in (TEACHER, SHIPPED) or (text.isdecimal() and int(text) in LEARNABLE)
        if value is not None and not is_known:
            sizes = f"{LEARNABLE[0]:,} to {LEARNABLE[-1]:,}"
            raise ValueError(f"{text!r} is no vocabulary. Use {TEACHER}, {SHIPPED}, or a number from {sizes}")
        return value if value is None else text
