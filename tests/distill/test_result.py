"""Results read like what ``--json`` prints, and show themselves as text and in a notebook."""

import json

import pytest

from distill.result import Csv, Result, Text
from pipeline.console import MOST_ROWS, Rows


def test_a_result_reads_like_its_values() -> None:
    result = Result({"score": 1})
    assert (result == {"score": 1}, result["score"], list(result), len(result)) == (True, 1, ["score"], 1)
    assert list(Result([{"a": 1}])) == [{"a": 1}]
    assert (bool(Result({})), bool(Result())) == (True, False)


def test_a_result_shows_tables_texts_and_messages_in_which_nothing_is_markup() -> None:
    result = Result({}).table(["name", "value"], [["a<b>[red]", 0.25]], "run & co").pairs("more", {"x": 1})
    result.add(Text("# card\x1b[2J")).note("so <i>it</i> is").warn("\x1bbeware")
    text, page = repr(result), result._repr_html_()
    assert "run & co" in text
    assert "a<b>[red] \u2502  0.25" in text
    assert text.splitlines()[-2:] == ["note: so <i>it</i> is", "warning: \\x1bbeware"]
    assert "<caption>run &amp; co</caption>" in page
    assert "<td>a&lt;b&gt;[red]</td><td>0.25</td>" in page
    assert "<tbody><tr><td>x</td><td>1</td></tr></tbody>" in page
    assert page.endswith("<p>note: so &lt;i&gt;it&lt;/i&gt; is</p><p>warning: \\x1bbeware</p>")
    for shown in (text, page):
        assert "\x1b" not in shown


def test_long_tables_are_truncated_where_shown_and_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [[n, None] for n in range(MOST_ROWS + 2)]
    result = Result().data(["n", "text\x1b[2J"], cells)
    rows = Rows(["n", "text\x1b[2J"], cells)
    assert (len(rows), rows[-1]) == (MOST_ROWS + 2, {"n": MOST_ROWS + 1, "text\x1b[2J": None})
    for shown in (repr(rows), rows._repr_html_(), repr(result), result._repr_html_()):
        assert shown.endswith("… 2 more rows")
        assert "\x1b" not in shown
    assert rows._repr_html_().count("<tr>") == 1 + MOST_ROWS
    result.print()
    assert f"{MOST_ROWS + 1} │" in capsys.readouterr().out


def test_json_and_csv_are_for_programs_and_messages_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result([{"a": float("nan")}]).add(Csv(["a"], [["x,y"]])).note("well")
    result.print(as_json=True)
    printed = capsys.readouterr()
    assert (json.loads(printed.out), printed.err) == ([{"a": None}], "well\n")
    result.print()
    assert capsys.readouterr().out == 'a\n"x,y"\n'
    Result().print(as_json=True)
    assert capsys.readouterr().out == ""
