"""Flags of what a student learns from its teacher's stored layers; free of torch."""

from pathlib import Path
from typing import ClassVar, Literal, get_args

from pydantic import Field, field_validator

from pipeline.config import Config, JsonFlags, SeedFlags, StoreFlags, UnverifiedFlags
from pipeline.errors import did_you_mean

ObjectiveName = Literal["hid-cls", "hid-cls-contrast", "pkd", "hid-seq", "att-mse", "att-kl", "val-kl"]
NAMES = get_args(ObjectiveName)
LAYERS = r"^\d+(,\d+)*$"


class LayerFlags(Config):
    """Flags of ``distill train-student`` about layers."""

    panel: ClassVar = "Learning from the teacher's layers"
    objective: str | None = Field(
        None, description=f"Losses between layers, joined by +, of {', '.join(NAMES)}. (default: logits alone)"
    )
    layers: str | None = Field(
        None,
        pattern=LAYERS,
        description="The teacher's layers that the student's last ones learn from, like 2,4,6. "
        "(default: those of --init-layers, or that the set has; of another student the last)",
    )
    intermediate_epochs: int = Field(
        0, ge=0, description="Epochs of the objective alone, before those of the logits; 0: beside them."
    )
    objective_weight: float | None = Field(
        None, gt=0, description="Weight of the objective beside the logits. (default: 1)"
    )
    filters: Path | None = Field(None, description="Folder of `distill filters`, through which hid-seq compares: TED.")

    @field_validator("objective")
    @classmethod
    def _are_objectives(cls, value: str | None) -> str | None:
        for name in value.split("+") if value else ():
            if name not in NAMES:
                raise ValueError(f"{name!r} is no objective; {did_you_mean(name, NAMES)}")
        return value

    @property
    def objectives(self) -> tuple[ObjectiveName, ...]:
        """The objectives, each once."""
        return tuple(dict.fromkeys(self.objective.split("+"))) if self.objective else ()  # type: ignore[arg-type]


class FiltersConfig(StoreFlags, UnverifiedFlags, SeedFlags, JsonFlags):
    """Flags of ``distill filters``."""

    helps: ClassVar = {"seed": "Seed of the filters, the order of rows and dropout."}
    set: str = Field(
        description="Learn from the states in this set: a path, or a name in the store.",
        json_schema_extra={"argument": True},
    )
    layers: str | None = Field(
        None, pattern=LAYERS, description="Whose filters, like 2,4,6. (default: all that are stored)"
    )
    dim: int = Field(128, ge=1, description="Width of what a filter makes of a state.")
    output_dir: Path | None = Field(None, description="Folder of the filters. (default: filters/NAME-OF-SET)")
    alpha: float = Field(1.0, ge=0, le=1, description="Weight of the gold labels; 1 - alpha is the teacher's.")
    num_train_epochs: int = Field(3, ge=1, description="Passes over the training rows.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak learning rate of Adam; decays linearly to 0.")
    per_device_train_batch_size: int = Field(32, ge=1, description="Rows per step.")
