"""Commands as functions: their keywords are the flags, and what they give shows itself."""

import inspect
from pathlib import Path

import pytest
from pydantic import Field

from distill.commands.keywords import call_text, takes_keywords
from pipeline.config import JsonFlags
from pipeline.errors import ConfigError
from pipeline.shown import MOST_ROWS, Result, Rows


class Brew(JsonFlags):
    """Flags of a command."""

    pot: Path = Field(description="Which pot.", json_schema_extra={"argument": True})
    cups: int = Field(2, ge=1, description="How many cups.")
    sugar: bool = Field(True, description="With sugar.")


@takes_keywords(Brew)
def brew(config: Brew) -> str:
    """Brews tea."""
    return call_text("brew", config)


def test_a_call_is_a_configuration_of_what_was_given() -> None:
    assert brew("blue", cups=3) == "brew(pot=PosixPath('blue'), cups=3)"
    assert brew(pot="blue") == "brew(pot=PosixPath('blue'))"


def test_help_lists_every_keyword_but_those_of_the_screen() -> None:
    assert list(inspect.signature(brew).parameters) == ["pot", "cups", "sugar"]
    assert inspect.signature(brew).parameters["cups"].default == 2
    lines = ["Brews tea.", "", "Args:", "    pot: Which pot.", "    cups: How many cups.", "    sugar: With sugar."]
    assert str(inspect.getdoc(brew)).splitlines() == lines


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match="'cup': did you mean 'cups'"):
        brew("blue", cup=3, json_output=True)
    with pytest.raises(ConfigError, match=r"--cups: .* \(got 0\)"):
        brew("blue", cups=0)
    with pytest.raises(TypeError, match="missing a required argument: 'pot'"):
        brew()


def test_a_result_is_a_dict_and_a_table() -> None:
    result = Result({"score": 1}, ["name", "value"], [["a<b>[red]", 0.25]], "run & co")
    assert result == {"score": 1}
    assert "run & co" in repr(result)
    assert "a<b>[red] \u2502  0.25" in repr(result)
    page = result._repr_html_()
    assert "<caption>run &amp; co</caption>" in page
    assert "<td>a&lt;b&gt;[red]</td><td>0.25</td>" in page


def test_rows_are_dicts_and_long_answers_are_cut_where_shown() -> None:
    rows = Rows(["n", "text\x1b[2J"], [[n, None] for n in range(MOST_ROWS + 2)])
    assert (len(rows), rows[-1]) == (MOST_ROWS + 2, {"n": MOST_ROWS + 1, "text\x1b[2J": None})
    for shown in (repr(rows), rows._repr_html_()):
        assert shown.endswith("… 2 more rows")
        assert "\x1b" not in shown
    assert rows._repr_html_().count("<tr>") == 1 + MOST_ROWS
