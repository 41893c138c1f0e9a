"""Settings of ``distill demo``."""

from pathlib import Path

from pydantic import Field

from pipeline.config import Config


class DemoConfig(Config):
    """Flags of ``distill demo``."""

    output_dir: Path = Field(Path("demo"), description="Folder for data, teachers, logit sets and runs.")
