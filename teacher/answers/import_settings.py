"""Settings of ``distill import``; free of heavy imports, so that ``--help`` is quick."""

import re
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from pipeline.config import PLACE, JsonFlags, OwnDataFlags, StoreFlags, names_of
from pipeline.sets.record_parts import SET_NAME

AnswersKind = Literal["logits", "probabilities", "logprobs", "score"]


class ImportConfig(OwnDataFlags, StoreFlags, JsonFlags):
    """Flags of ``distill import``."""

    helps: ClassVar = {"data": "Folder or file with the task's own rows. (default: DISTILL_DATA, then the hub)"}
    file: Path = Field(
        description="Any file of rows, or NumPy's .npz: texts, or split and source_row, and the teacher's answers.",
        json_schema_extra={"argument": True} | PLACE,
    )
    task: str | None = Field(
        None, description="Task that the answers are about; see `distill tasks`.", json_schema_extra=PLACE
    )
    teacher: str = Field(min_length=1, max_length=200, description="Who answered: a name, for the record.")
    answers: AnswersKind | None = Field(
        None, description="Which column the answers are in, and what they are. (default: the one that the file has)"
    )
    teacher_labels: str | None = Field(
        None, description="The order of labels in lists of numbers, as names with commas. (default: the task's)"
    )
    rest: Literal["refuse", "spread"] = Field(
        "refuse",
        description="Answers that do not name every label: refuse them, or spread what is left of 1 over the others.",
    )
    tokenizer: Path | None = Field(
        None,
        description="A tokenizer.json, or a folder with one (a set, a run, a model), for the student to read with. "
        "(default: made of the words of the training texts)",
        json_schema_extra=PLACE,
    )
    splits: str | None = Field(
        None, description="Splits to look for answers to, with commas. (default: all)", json_schema_extra=PLACE
    )
    name: str | None = Field(
        None, pattern=SET_NAME, description="Name of the set. (default: TASK-TEACHER)", json_schema_extra=PLACE
    )
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens; students read no more either.")
    rows_per_shard: int = Field(8192, ge=1, description="Source rows per Parquet file.", json_schema_extra=PLACE)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits asked for; empty for all."""
        return names_of(self.splits)

    def set_name(self, task: str) -> str:
        """The name of the set: as given, or that of the task and of the teacher, as far as file names may have it."""
        teacher = re.sub(r"[^A-Za-z0-9._-]+", "-", self.teacher).strip("-")
        return self.name or f"{task}-{teacher}"[:100]
