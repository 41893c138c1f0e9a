"""Settings of the student's commands; free of torch, so that ``--help`` is quick."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.config import Config
from pipeline.environment import store_folder

EmbeddingKind = Literal["hybrid", "cmow", "cbow"]


class TrainConfig(Config):
    """``distill train-student``. The defaults are the paper's recipe for its best student."""

    task: str | None = Field(None, description="Train from the logit set of this name in the store.")
    logits: str | None = Field(None, description="Train from this logit set: a path, or a name in the store.")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    output_dir: Path | None = Field(None, description="Folder of the run. (default: runs/NAME-OF-SET)")
    where: str | None = Field(None, description="SQL condition that selects training rows, like 'margin(logits) < 0.9'")
    embedding: EmbeddingKind = Field("hybrid", description="Ordered products of matrices, sums of vectors, or both.")
    bidirectional: bool = Field(True, description="Multiply a second set of matrices from the end to the start.")
    matrix_size: int | None = Field(None, ge=1, le=64, description="Side of a matrix. (default: 20 hybrid, 28 cmow)")
    vector_size: int | None = Field(None, ge=1, description="Size of a vector. (default: 400 hybrid, 784 cbow)")
    hidden_size: int = Field(1000, ge=1, description="Width of the MLP head.")
    hidden_dropout: float = Field(0.2, ge=0, lt=1, description="Dropout on the sentence representation.")
    alpha: float = Field(0.5, ge=0, le=1, description="Weight of the gold labels; 1 - alpha is the teacher's.")
    temperature: float = Field(1.0, gt=0, description="Softens teacher and student in the teacher's term.")
    num_train_epochs: int = Field(20, ge=1, description="Most passes over the training rows.")
    early_stopping_patience: int = Field(5, ge=1, description="Stop after so many epochs without a better dev metric.")
    learning_rate: float = Field(5e-4, gt=0, description="Peak learning rate of Adam; decays linearly to 0.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    seed: int = Field(42, ge=0, description="Seed of the weights, the order of rows and dropout.")
    allow_unverified: bool = Field(False, description="Train on a set that is complete but not verified.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class EvaluateConfig(Config):
    """``distill evaluate``."""

    run: Path = Field(description="Folder of a run.", json_schema_extra={"argument": True})
    logits: str | None = Field(None, description="Evaluate on this set. (default: the one it was trained on)")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    allow_unverified: bool = Field(False, description="Evaluate on a set that is complete but not verified.")
    json_output: bool = Field(False, description="Print the result as JSON.")


class PredictConfig(Config):
    """``distill predict``."""

    run: Path = Field(description="Folder of a run.", json_schema_extra={"argument": True})
    texts: tuple[str, ...] = Field(
        (), description="Sentences; for a pair task two per input.", json_schema_extra={"argument": True}
    )
    file: Path | None = Field(None, description="Parquet, CSV, TSV or JSONL with sentence1 (and sentence2), or text.")
    json_output: bool = Field(False, description="Print the result as JSON.")
