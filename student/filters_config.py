"""Settings of ``distill filters``; free of torch."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from pipeline.config import JsonFlags, SeedFlags, StoreFlags, UnverifiedFlags
from student.layer_flags import LAYERS


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
