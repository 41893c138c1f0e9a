"""Settings of ``distill report``; free of heavy imports, so that ``--help`` is quick."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from pipeline.config import JsonFlags, StoreFlags, UnverifiedFlags


class ReportConfig(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill report``."""

    helps: ClassVar = {"json_output": "Print where the page is and the pictures' figures as JSON."}
    set_or_run: str = Field(
        description="A logit set (a path, or a name in the store), or the folder of a run or a sweep.",
        json_schema_extra={"argument": True},
    )
    output: Path | None = Field(
        None, description="The page. (default: NAME-report.html here; of a run NAME-run-report.html)"
    )
