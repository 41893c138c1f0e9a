"""Settings of ``distill import``. The module has no heavy imports, so that ``--help`` is quick."""

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from pipeline.parsing import names_of
from pipeline.sets.record_parts import SET_NAME
from pipeline.shared_settings import PLACE, DataFlags, JsonFlags, OwnDataFlags, StoreFlags, UnverifiedFlags

AnswersKind = Literal["logits", "probabilities", "logprobs", "score", "label"]


class NewSet(StoreFlags):
    """What is imported, and the set that it becomes."""

    file: Path = Field(
        description="File of rows or NumPy's .npz, with texts (or split and source_row) and the teacher's predictions. "
        "With --extend: folder of --collect.",
        json_schema_extra={"argument": True} | PLACE,
    )
    name: str | None = Field(
        None,
        pattern=SET_NAME,
        description="Name of the set. Default: TASK-TEACHER, or SET-collected.",
        json_schema_extra=PLACE,
    )
    rows_per_shard: int = Field(8192, ge=1, description="Source rows per Parquet file.", json_schema_extra=PLACE)


class AnswersFile(OwnDataFlags, NewSet):
    """A file with a teacher's predictions for the rows of a task."""

    task: str | None = Field(None, description="Task of the predictions. See `distill tasks`.", json_schema_extra=PLACE)
    teacher: str = Field(min_length=1, max_length=200, description="Name of the teacher, for the record.")
    answers: AnswersKind | None = Field(
        None, description="Column of the predictions, which also defines their meaning. Default: the one in the file."
    )
    teacher_labels: str | None = Field(
        None, description="Label order of lists of numbers, as comma-separated names. Default: the task's."
    )
    rest: Literal["refuse", "spread"] = Field(
        "refuse",
        description="Predictions that lack some labels: refuse them, or spread the remaining probability over these "
        "labels.",
    )
    tokenizer: Path | None = Field(
        None,
        description="Tokenizer of the student: a tokenizer.json, or a folder with one (a set, a run, a model). "
        "Default: BERT's uncased vocabulary if it has nearly all words, otherwise one learned from the training "
        "texts.",
        json_schema_extra=PLACE,
    )
    splits: str | None = Field(None, description="Comma-separated splits. Default: all.", json_schema_extra=PLACE)
    max_seq_length: int = Field(128, ge=4, description="Maximum input length in tokens, also for students.")

    @property
    def split_names(self) -> tuple[str, ...]:
        """The requested splits, empty for all."""
        return names_of(self.splits)

    def set_name(self, task: str) -> str:
        """The name of the set: the given one, or the names of task and teacher in characters for file names."""
        teacher = re.sub(r"[^A-Za-z0-9._-]+", "-", self.teacher).strip("-")
        return self.name or f"{task}-{teacher}"[:100]


class CollectedFolder(UnverifiedFlags, DataFlags, NewSet):
    """A folder with the inputs that a cascade handed on, and the set that gets a new version with them."""

    chosen_by: ClassVar = "extend"
    extend: str = Field(
        description="Add what a cascade collected in the folder FILE to this set (a path, or a name in the store), so "
        "that the next student learns from it.",
    )


class ImportSettings(JsonFlags):
    """Flags of ``distill import``."""

    helps: ClassVar = {
        "data": "Folder or file with the rows of the task. Default: DISTILL_DATA, then the hub. With --extend: file "
        "with the texts of inputs that were collected without text, in the columns of the task.",
    }
    source: AnswersFile | CollectedFolder
