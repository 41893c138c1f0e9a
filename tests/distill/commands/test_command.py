"""Commands as functions and in the shell: their keywords are the flags, and both get the same result."""

import inspect
import json
from pathlib import Path

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from distill.commands.command import called, command, shell_form
from distill.result import Result
from pipeline.errors import ConfigError
from pipeline.settings import Settings
from tests.helpers.messages import naming


class Brew(Settings):
    """Flags of a command."""

    pot: Path = Field(description="Which pot.", json_schema_extra={"argument": True})
    cups: int = Field(2, ge=1, description="How many cups.")
    sugar: bool = Field(True, description="With sugar.")
    herbs: tuple[str, ...] = Field((), description="Which herbs.")


@command(Brew)
def brew(config: Brew) -> Result:
    """Brews tea."""
    result = Result({"cups": config.cups, "herbs": list(config.herbs), "called": called()})
    result.table(["pot", "cups"], [[str(config.pot), config.cups]], "tea")
    if config.cups > 8:
        result.warn("much tea").failed()
    return result


def test_a_call_gives_the_settings_that_were_given() -> None:
    assert brew("blue", cups=3)["called"] == "brew(pot='blue', cups=3)"
    assert brew(pot="blue")["called"] == "brew(pot='blue')"


def test_what_may_be_given_several_times_may_be_one_in_python() -> None:
    assert [brew("blue", herbs=herbs)["herbs"] for herbs in ("mint", ["mint"], ("mint", "sage"))] == [
        ["mint"],
        ["mint"],
        ["mint", "sage"],
    ]


def test_help_lists_every_keyword_but_those_of_the_shell() -> None:
    assert list(inspect.signature(brew).parameters) == ["pot", "cups", "sugar", "herbs"]
    assert inspect.signature(brew).parameters["cups"].default == 2
    lines = ["Brews tea.", "", "Args:", "    pot: Which pot.", "    cups: How many cups.", "    sugar: With sugar."]
    assert str(inspect.getdoc(brew)).splitlines() == [*lines, "    herbs: Which herbs."]


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match=naming("'cup'", "'cups'")):
        brew("blue", cup=3, json_output=True)
    with pytest.raises(ConfigError, match=naming("--cups: ", "0")):
        brew("blue", cups=0)
    with pytest.raises(TypeError, match="missing a required argument: 'pot'"):
        brew()


@pytest.mark.parametrize("cups", [2, 9])
def test_shell_and_python_get_the_same(cups: int) -> None:
    application = typer.Typer()
    application.command()(shell_form(brew))
    result = brew("blue", cups=cups)
    shown = CliRunner().invoke(application, ["blue", "--cups", str(cups)])
    values = CliRunner().invoke(application, ["blue", "--cups", str(cups), "--json"])
    assert json.loads(values.stdout)["cups"] == result["cups"] == cups
    assert f"blue │    {cups}" in shown.stdout
    for printed in (shown, values):
        assert (printed.exit_code, printed.stderr) == (int(cups > 8), "warning: much tea\n" if cups > 8 else "")
    assert (result.exit_code, result.warnings) == (int(cups > 8), ["much tea"] if cups > 8 else [])
