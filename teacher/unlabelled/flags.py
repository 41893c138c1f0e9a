"""Flags of unlabelled rows; free of torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.config import PLACE, SeedFlags

PairsFrom = Literal["columns", "neighbours", "similar"]


class Unlabelled(SeedFlags):
    """Which text without gold is added to a task's training rows."""

    panel: ClassVar = "Text without gold"
    chosen_by: ClassVar = "unlabelled"
    unlabelled: str = Field(
        description="Add rows without gold: a file or folder of text, or a corpus by its name.", json_schema_extra=PLACE
    )
    max_unlabelled: int | None = Field(
        None, ge=1, description="Add so many of them, drawn by --seed. (default: all; a corpus by name needs it)"
    )
    unlabelled_pairs: PairsFrom | None = Field(
        None,
        description="Pairs are two columns, neighbouring sentences, or similar ones. (default: by the text)",
    )
