"""Settings of the commands that query sets. The module has no heavy imports, so that ``--help`` is quick."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from pipeline.shared_settings import JsonFlags, StoreFlags, UnverifiedFlags


class DiffSettings(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill diff``."""

    a: str = Field(description="Logit set: a path, or a name in the store.", json_schema_extra={"argument": True})
    b: str = Field(description="Logit set to compare it with.", json_schema_extra={"argument": True})
    tolerance: float = Field(1e-4, ge=0, description="Largest difference of logits that counts as equal.")


class SqlSettings(StoreFlags):
    """Flags of ``distill sql``."""

    query: str | None = Field(
        None,
        description="One SELECT. Tables: sets, shards, teachers, examples, and a view per set. -: read it from "
        "standard input. Without a query, a terminal shows a prompt.",
        json_schema_extra={"argument": True},
    )
    file: Path | None = Field(None, description="Read the query from a file.")
    explain_row: str | None = Field(
        None, description="Show the origin of the row SET:SPLIT:ROW[:VARIANT] instead of a query."
    )
    csv: bool = Field(False, description="Print rows as CSV.")
    parquet: Path | None = Field(None, description="Write rows to a Parquet file.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        is_query = self.query is not None or self.file is not None
        if self.explain_row is not None and (is_query or self.csv or self.parquet is not None):
            raise ValueError("--explain-row can only be combined with --store and --json. Remove the other flags.")
        if self.query is not None and self.file is not None:
            raise ValueError("the query is given twice, as an argument and as --file. Remove one of them.")
        return self
