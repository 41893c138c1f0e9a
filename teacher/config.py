"""Settings of the teacher's commands; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.config import Config
from pipeline.environment import store_folder
from pipeline.tasks import Objective

Precision = Literal["fp32", "bf16", "fp16"]


class FinetuneConfig(Config):
    """``distill finetune-teacher``."""

    task: str | None = Field(None, description="Task to train for; see `distill tasks`.")
    manifest: Path | None = Field(None, description="YAML file with a task of your own.")
    data: Path | None = Field(None, description="Folder or file with the task's rows (default: DISTILL_DATA, then hub)")
    model_name_or_path: str = Field(description="Encoder to start from: a hub id or a folder.")
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    output_dir: Path = Field(description="Folder for the fine-tuned teacher.")
    objective: Objective | None = Field(
        None, description="For a task with scores: regress the score, or classify its bins. (default: the task's type)"
    )
    num_train_epochs: int = Field(3, ge=1, description="Passes over the training split.")
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate; decays linearly to 0.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step and process.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens.")
    save_steps: int = Field(1000, ge=1, description="Steps between two checkpoints to resume from.")
    seed: int = Field(42, ge=0, description="Seed of the new layers, the order of rows and dropout.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class DumpConfig(Config):
    """``distill teacher-dump``."""

    task: str | None = Field(None, description="Task to dump; see `distill tasks`.")
    manifest: Path | None = Field(None, description="YAML file with a task of your own.")
    data: Path | None = Field(None, description="Folder or file with the task's rows (default: DISTILL_DATA, then hub)")
    model_name_or_path: str | None = Field(None, description="Teacher: a hub id or a folder. (default: the task's)")
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    teacher_labels: str | None = Field(
        None, description="The teacher's own label order, as names with commas. (default: from its config)"
    )
    splits: str | None = Field(None, description="Splits to dump, with commas. (default: all of the task's)")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    name: str | None = Field(
        None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the set. (default: the task's)"
    )
    precision: Precision = Field("fp32", description="Arithmetic of the forward pass; logits are stored in fp32.")
    max_seq_length: int = Field(128, ge=4, description="Longest input in tokens.")
    max_tokens_per_batch: int | None = Field(
        None, ge=1, description="Padded tokens per forward pass. (default: 2048 on CPU, 32768 on GPU)"
    )
    rows_per_shard: int = Field(8192, ge=1, description="Source rows per Parquet file.")
    shard_index: int = Field(0, ge=0, description="Which part of the shards this job writes, from 0.")
    num_shards: int = Field(1, ge=1, description="Number of jobs that share the work (Slurm arrays and the like).")
    plan: bool = Field(False, description="Print rows, shards, bytes, time and memory, and stop.")
    json_output: bool = Field(False, description="Print the result as JSON.")

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits asked for; empty for all."""
        return _names(self.splits)

    @property
    def teacher_label_names(self) -> tuple[str, ...]:
        """The teacher's label order as given; empty if it was not."""
        return _names(self.teacher_labels)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
