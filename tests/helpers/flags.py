"""The settings that the command line makes of flags."""

import typer
from typer.testing import CliRunner

from distill.commands.command import command, shell_form
from distill.result import Result
from student.settings import TrainSettings


def parsed(flags: list[str]) -> TrainSettings:
    """What the command line makes of flags."""
    seen: list[TrainSettings] = []

    @command(TrainSettings)
    def keep(config: TrainSettings) -> Result:
        """Keep it."""
        seen.append(config)
        return Result()

    application = typer.Typer()
    application.command()(shell_form(keep))
    result = CliRunner().invoke(application, flags)
    assert result.exit_code == 0, result.output
    return seen[0]
