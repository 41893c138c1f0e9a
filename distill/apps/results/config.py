"""Settings of ``distill results``; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pipeline.config import JsonFlags


class ResultsConfig(JsonFlags):
    """Flags of ``distill results``."""

    tasks: str | None = Field(None, description="Tasks, with commas. (default: those of GLUE whose data are found)")
    manifest: tuple[str, ...] = Field((), description="YAML file with a task of your own, too; repeat for more.")
    data: Path | None = Field(None, description="Folder with the tasks' rows. (default: DISTILL_DATA, then the hub)")
    model_name_or_path: str | None = Field(None, description="Encoder to fine-tune: a hub id or a folder.")
    teachers: Path | None = Field(None, description="Folder with a teacher for each task, instead of fine-tuning.")
    teacher_seeds: int = Field(1, ge=1, description="Teachers of a task, of which the best on held-out rows is kept.")
    seeds: int = Field(3, ge=1, description="Students of each kind with different seeds.")
    experiment: Path | None = Field(
        None, description="YAML file with the sets and students to compare. (default: students, and on gold alone)"
    )
    output_dir: Path = Field(Path("results"), description="Folder of everything, and of RESULTS.md.")
    plan: bool = Field(False, description="Print the commands, and stop.")

    @model_validator(mode="after")
    def _some_teacher(self) -> Self:
        if self.model_name_or_path is None and self.teachers is None:
            raise ValueError("no teacher: give --model-name-or-path ENCODER to fine-tune, or --teachers FOLDER")
        return self

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks asked for by name."""
        return tuple(name.strip() for name in (self.tasks or "").split(",") if name.strip())
