"""Settings of ``distill finetune-teacher``. The module does not import torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from pipeline.parsing import names_of
from pipeline.settings import Settings
from pipeline.shared_settings import PLACE, DataFlags, HeldOutFlags, JsonFlags, OwnDataFlags, ReportFlags, SeedFlags
from pipeline.tasks.task import Objective
from teacher.models.model_settings import ModelFlags
from teacher.settings import (
    CorpusFlags,
    Masking,
)


class Encoder(ModelFlags):
    """The model that fine-tuning starts from."""

    panel: ClassVar = ModelFlags.panel
    model_name_or_path: str = Field(description="Encoder to fine-tune: a hub id or a folder.", json_schema_extra=PLACE)


class FinetuneGold(HeldOutFlags):
    """The objective of training on a task's gold."""

    objective: Objective | None = Field(
        None,
        description="Objective: regression or classification (bins) for scores, mlm for a corpus. Default: the task's "
        "type.",
        json_schema_extra={"decides": False},  # the resulting target is recorded instead
    )
    num_train_epochs: int = Field(3, ge=1, description="Number of epochs.")


class FinetuneTask(FinetuneGold, OwnDataFlags):
    """A teacher of one task."""

    chosen_by: ClassVar = "task"
    task: str | None = Field(None, description="Task to fine-tune on. See `distill tasks`.", json_schema_extra=PLACE)


class FinetuneTasks(FinetuneGold, DataFlags):
    """A teacher for each of several tasks, on one encoder."""

    chosen_by: ClassVar = "tasks"
    tasks: str = Field(
        description="Comma-separated tasks (names or manifests) to train together, with one encoder and a head each.",
        json_schema_extra=PLACE,
    )

    @field_validator("tasks")
    @classmethod
    def _some(cls, value: str) -> str:
        if not names_of(value):
            raise ValueError("contains no name of a task")
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks."""
        return names_of(self.tasks)


class FinetuneCorpus(CorpusFlags):
    """A masked language model of a corpus."""

    objective: Literal["mlm"] = Field(description="Objective. mlm: masked language modelling.")
    max_steps: int = Field(10_000, ge=1, description="Number of steps on a corpus.")
    masking: Masking = Field(default_factory=Masking)


class AdamwFlags(Settings):
    """The settings of the optimizer."""

    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate with linear decay to 0.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Maximum norm of the gradients.")


class StepFlags(SeedFlags):
    """The settings of steps, and between steps."""

    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step and process.")
    warmup_steps: float = Field(0, ge=0, description="Steps of linear warm-up. Below 1: ratio of all steps.")
    save_steps: int = Field(
        1000,
        ge=1,
        description="Steps between two checkpoints to resume from.",
        json_schema_extra={"decides": False},
    )
    max_seq_length: int = Field(128, ge=4, description="Maximum input length in tokens.")


class FinetuneSettings(ReportFlags, JsonFlags):
    """Settings of ``distill finetune-teacher``."""

    helps: ClassVar = {
        "manifest": "YAML file of your own task or corpus.",
        "data": "Folder or file with its rows or its text. Default: DISTILL_DATA, then the hub.",
        "seed": "Seed of the new layers, the order of rows and dropout.",
    }
    learn: FinetuneTask | FinetuneTasks | FinetuneCorpus
    encoder: Encoder
    output_dir: Path = Field(description="Folder for the fine-tuned teacher.", json_schema_extra=PLACE)
    optimizer: AdamwFlags = Field(default_factory=AdamwFlags)
    steps: StepFlags = Field(default_factory=StepFlags)
