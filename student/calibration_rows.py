"""What a student's training is steered by: which rows are held out and why, the optimizer, and the epochs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.errors import DataError
from pipeline.settings import Settings
from pipeline.tasks.task import Metric
from student.model.flags import EmbeddingKind

OptimizerKind = Literal["adam", "adadelta"]
LEARNING_RATES: dict[OptimizerKind, float] = {"adam": 5e-4, "adadelta": 1.0}
BERT_LEARNING_RATE = 5e-5
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20  # if no flag sets the number
ROWS_READ = 1_000_000  # total rows over all epochs, if the number of epochs is between the two limits
CALIBRATED_SHARE, MOST_CALIBRATED = 20, 1000  # one in so many rows, and at most so many
FEWEST_CALIBRATED = 50  # fewer would move probabilities by chance as much as they mend them


class BestEpoch(Settings):
    """The metric and the rows that select the best epoch, whose weights are saved."""

    metric_for_best_model: Metric | None = Field(
        None, description="Metric that selects the best epoch, such as macro_f1. Default: the task's first."
    )
    held_out: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the training rows that selects the best epoch instead of dev. Default: dev selects it.",
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


class Optimizer(Settings):
    """The optimizer and its settings."""

    optimizer: OptimizerKind = Field(
        "adam", description="Optimizer: Adam, or AdaDelta with rho 0.95 (Tang et al. 2019)."
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate with linear decay to 0. Default: 5e-4, for a bert 5e-5, for adadelta 1.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Maximum norm of the gradients.")

    @property
    def rate(self) -> float:
        """The peak learning rate: the given one, or the default of the optimizer."""
        return self.learning_rate or LEARNING_RATES[self.optimizer]

    def for_encoder(self, embedding: EmbeddingKind) -> "Optimizer":
        """Returns the same settings with the encoder's learning rate, which is lower for pretrained layers."""
        is_tuned = embedding == "bert" and self.optimizer == "adam" and self.learning_rate is None
        return self.model_copy(update={"learning_rate": BERT_LEARNING_RATE}) if is_tuned else self


class Epochs(Settings):
    """The number and the size of the steps."""

    num_train_epochs: int | None = Field(
        None,
        ge=1,
        description="Maximum number of epochs. Default: 20, above 50,000 training rows enough for 1,000,000 rows in "
        "total, at least 3.",
    )
    early_stopping_patience: int = Field(
        5, ge=1, description="Number of epochs without improvement after which training stops."
    )
    warmup_steps: float = Field(0, ge=0, description="Steps of linear warm-up. Below 1: ratio of all steps.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step.")

    def for_rows(self, num_rows: int) -> "Epochs":
        """Returns the same settings with the number of epochs for so many training rows, unless a flag sets it."""
        usual = max(FEWEST_EPOCHS, min(MOST_EPOCHS, ROWS_READ // max(1, num_rows)))
        return self.model_copy(update={"num_train_epochs": self.num_train_epochs or usual})
