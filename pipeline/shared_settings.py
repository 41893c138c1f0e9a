"""The parts of settings that many commands share, such as ``--json``, ``--store`` and ``--seed``."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from pipeline.environment import store_folder
from pipeline.settings import Settings

ReportTo = Literal["none", "tensorboard"]
# marks a path whose content decides the result, so that records store its hash
PLACE: dict[str, Any] = {"decides": False}


class JsonFlags(Settings):
    """For the commands that print a result."""

    json_output: bool = Field(False, description="Print the result as JSON.", json_schema_extra={"decides": False})


class StoreFlags(Settings):
    """For the commands that find sets by their names."""

    store: Path = Field(
        default_factory=store_folder,
        description="Folder of logit sets (DISTILL_STORE).",
        json_schema_extra={"decides": False},
    )


class SetFlags(StoreFlags):
    """For the commands about one set."""

    set: str = Field(description="Logit set: a path, or a name in the store.", json_schema_extra={"argument": True})


class UnverifiedFlags(Settings):
    """For the commands that read sets, which by default accept only verified ones."""

    allow_unverified: bool = Field(
        False, description="Also accept sets that are complete but not verified.", json_schema_extra={"decides": False}
    )


class HeldOutFlags(Settings):
    """For the commands that hold out training rows."""

    held_out: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the training rows that selects the best epoch instead of dev. Default: dev selects "
        "it, or 0.1 if only a test split has gold.",
    )
    group: str | None = Field(
        None,
        description="Column whose rows with the same value are held out together, such as a customer. The manifest "
        "keeps it. Default: near copies are held out together.",
    )


class ReportFlags(Settings):
    """For the commands that train."""

    report_to: ReportTo = Field(
        "none",
        description="Tracker for evaluations, in addition to metrics.jsonl in the run's folder.",
        json_schema_extra={"decides": False},
    )

    @field_validator("report_to")
    @classmethod
    def _is_there(cls, value: ReportTo) -> ReportTo:
        if value != "none" and find_spec(value) is None:
            raise ValueError(f"{value} is not installed: pip install 'distill-offline[{value}]'")
        return value


class DataFlags(Settings):
    """For the commands that read rows or text."""

    panel: ClassVar = "Rows and text"
    data: Path | None = Field(
        None,
        description="Folder or file with the rows of the task. Default: DISTILL_DATA, then the hub.",
        json_schema_extra=PLACE,
    )


class OwnDataFlags(DataFlags):
    """For the commands that read the rows of a task, or the text of a corpus, which may be one of your own."""

    panel: ClassVar = DataFlags.panel
    manifest: Path | None = Field(None, description="YAML file of your own task.", json_schema_extra=PLACE)


class SeedFlags(Settings):
    """For the commands that draw random numbers."""

    panel: ClassVar = "Options"
    seed: int = Field(42, ge=0, lt=2**63, description="Random seed.")
