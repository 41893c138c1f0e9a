"""Settings of ``distill budget``, which measures codecs before a dump."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from pipeline.config import JsonFlags, OwnDataFlags, StoreFlags
from teacher.layer_flags import WhichLayers
from teacher.models.model_settings import ForwardFlags, ModelFlags
from teacher.settings import CorpusFlags, MaskedCopies


class BudgetSet(StoreFlags):
    """A set of masked words with a lossless codec."""

    chosen_by: ClassVar = "set"
    set: str = Field(
        description="Set of masked words with codec hidden or dense: a path, or a name in the store.",
        json_schema_extra={"argument": True},
    )
    positions: int = Field(2000, ge=1, description="Number of masked positions for the measurement.")


class BudgetCorpus(CorpusFlags):
    """The start of a corpus."""

    masking: MaskedCopies = Field(default_factory=MaskedCopies)
    teacher: ModelFlags = Field(default_factory=ModelFlags)
    forward: ForwardFlags = Field(default_factory=ForwardFlags)
    positions: int = Field(2000, ge=1, description="Number of masked positions for the measurement.")


class BudgetTask(OwnDataFlags):
    """The outputs of layers for some rows of a task."""

    chosen_by: ClassVar = "task"
    task: str = Field(description="Task on whose rows layer codecs are measured. See `distill tasks`.")
    layers: WhichLayers = Field(default_factory=WhichLayers)
    teacher: ModelFlags = Field(default_factory=ModelFlags)
    forward: ForwardFlags = Field(default_factory=ForwardFlags)
    sample: int = Field(512, ge=1, description="Number of training rows. A fifth of them is measured.")

    @model_validator(mode="after")
    def _has_layers(self) -> Self:
        if not self.layers.signals:
            raise ValueError("nothing to measure: give layers with --states, --cls, --attention or --values")
        return self


class BudgetSettings(JsonFlags):
    """Settings of ``distill budget``."""

    helps: ClassVar = {
        "manifest": "YAML file of your own corpus.",
        "data": "Folder or file with the corpus. Default: DISTILL_DATA, then the hub.",
        "model_name_or_path": "Teacher: a hub id or a folder. Default: the corpus's.",
        "seed": "Seed of masking and samples.",
    }
    of: BudgetSet | BudgetCorpus | BudgetTask | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.of is None:
            raise ValueError("nothing to measure: give a set of masked words, --corpus or --task")
        return self
