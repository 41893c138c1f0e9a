"""Settings of ``distill report``; free of heavy imports, so that ``--help`` is quick."""

from pathlib import Path

from pydantic import Field

from pipeline.config import Config
from pipeline.environment import store_folder


class ReportConfig(Config):
    """``distill report``."""

    set_or_run: str = Field(
        description="A logit set (a path, or a name in the store), or the folder of a run or a sweep.",
        json_schema_extra={"argument": True},
    )
    output: Path | None = Field(None, description="The page. (default: NAME-report.html in this folder)")
    store: Path = Field(default_factory=store_folder, description="Folder of logit sets (DISTILL_STORE).")
    allow_unverified: bool = Field(False, description="Report on a set that is complete but not verified.")
    json_output: bool = Field(False, description="Print where the page is and the pictures' figures as JSON.")
