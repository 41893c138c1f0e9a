"""The settings that the command line makes of flags."""

import typer
from typer.testing import CliRunner

from distill.commands.options import takes
from student.config import TrainConfig


def parsed(flags: list[str]) -> TrainConfig:
    """What the command line makes of flags."""
    seen: list[TrainConfig] = []

    def command(config: TrainConfig) -> None:
        """Keep it."""
        seen.append(config)

    application = typer.Typer()
    application.command()(takes(TrainConfig)(command))
    result = CliRunner().invoke(application, flags)
    assert result.exit_code == 0, result.output
    return seen[0]
