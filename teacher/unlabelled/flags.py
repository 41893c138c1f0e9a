"""Flags of unlabelled rows. The module does not import torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.shared_settings import PLACE, SeedFlags

PairsFrom = Literal["columns", "neighbours", "similar"]


class Unlabelled(SeedFlags):
    """The text without gold that is added to a task's training rows."""

    panel: ClassVar = "Text without gold"
    chosen_by: ClassVar = "unlabelled"
    unlabelled: str = Field(
        description="Unlabelled text to add to the training rows: a file, a folder, or the name of a corpus.",
        json_schema_extra=PLACE,
    )
    max_unlabelled: int | None = Field(
        None,
        ge=1,
        description="Number of unlabelled rows, sampled with --seed. Required for a corpus by name. Default: all.",
    )
    unlabelled_pairs: PairsFrom | None = Field(
        None,
        description="Source of pairs: two columns, neighbouring sentences, or similar sentences. Default: depends on "
        "the text.",
    )
