"""Settings of ``distill diff``; free of heavy imports, so that ``--help`` is quick."""

from pydantic import Field

from pipeline.config import JsonFlags, StoreFlags, UnverifiedFlags


class DiffConfig(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill diff``."""

    a: str = Field(description="A set: a path, or a name in the store.", json_schema_extra={"argument": True})
    b: str = Field(description="The set to compare it with.", json_schema_extra={"argument": True})
    tolerance: float = Field(1e-4, ge=0, description="Logits that differ by more have moved.")
