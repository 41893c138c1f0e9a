"""What reaches the terminal: texts of strangers are shown, never obeyed; rows of data stay readable."""

import io
import json
import sys
from collections.abc import Callable

import pytest
from rich.console import Console

from distill.commands import app
from pipeline import console
from pipeline.console import Rows
from pipeline.untrusted import visible

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x00\x7f\x9b2J\x85b [bold]x[/bold] [/]"
SPELLED = r"a\x1b[31mred\x1b]0;title\x07\x00\x7f\x9b2J\x85b [bold]x[/bold] [/]"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Replaces the terminal by a text of a certain width."""

    def make(width: int) -> io.StringIO:
        text = io.StringIO()
        terminal = Console(file=text, width=width, force_terminal=True, color_system=None)
        monkeypatch.setattr(console, "stdout", terminal)
        monkeypatch.setattr(console, "stderr", terminal)
        return text

    return make


@pytest.mark.parametrize(
    "say",
    [
        console.note,
        console.warn,
        console.error,
        lambda text: console.print_table([text], [[1]]),
        lambda text: console.print_table(["x"], [[text]]),
        lambda text: console.print_table(["x"], [[[text]]]),
        lambda text: console.print_table(["x"], [[1]], title=text + " and so on"),
        lambda text: console.print_pairs(text, {"a": 1}),
        lambda text: console.print_pairs("a", {text: 1}),
        lambda text: console.print_pairs("a", {"a": text}),
        lambda text: console.print_rows([text], [[1]]),
        lambda text: console.print_rows(["x"], [[text[:-20]], [text[-20:]]]),
        lambda text: console.print_rows([text, *"abcdefghij"], [[text] * 11] * 2),
    ],
)
@pytest.mark.parametrize("width", [200, 1000])
def test_nothing_of_a_text_is_a_command(
    screen: Callable[[int], io.StringIO], say: Callable[[str], None], width: int
) -> None:
    shown = screen(width)
    say(HOSTILE)
    printed = shown.getvalue()
    assert {c for c in printed if ord(c) < 32 or 127 <= ord(c) < 160} <= {"\n"}
    shown_again = "".join(printed.split())  # titles are wrapped
    for part in (r"a\x1b[31mred\x1b]0;title\x07\x00\x7f", "[bold]x[/bold][/]"):
        assert part in shown_again or width == 200


def test_an_address_is_no_picture(capsys: pytest.CaptureFixture[str]) -> None:
    console.note("see mnli:train:7")
    console.print_pairs("mnli:train:7", {":car:": ":bus:"})
    shown = capsys.readouterr()
    assert shown.err == "see mnli:train:7\n"
    assert all(text in shown.out for text in ("mnli:train:7", ":car:", ":bus:"))


def test_a_hash_is_shown_whole(screen: Callable[[int], io.StringIO]) -> None:
    shown = screen(40)
    console.print_pairs("file", {"sha256": "0123456789abcdef" * 4})
    cells = [line.split("│")[2].strip() for line in table_lines(shown)]
    assert "".join(cells) == "0123456789abcdef" * 4


def test_control_characters_are_spelled_out() -> None:
    assert visible(HOSTILE) == SPELLED
    assert visible("tab\tand\nline, ü 漢 🙂") == "tab\tand\nline, ü 漢 🙂"


def test_progress_shows_its_description_literally(screen: Callable[[int], io.StringIO]) -> None:
    shown = screen(200)
    with console.progress(1, "[red]\x9b2J") as steps:
        steps.describe("[/]\x9b2K")
        steps.advance()
    assert "\x9b" not in shown.getvalue()
    assert r"[/]\x9b2K" in shown.getvalue()


def test_json_is_left_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"text": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"text": HOSTILE}


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"kl": float("nan"), "rows": [(1.5, float("inf"))]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"kl": None, "rows": [[1.5, None]]}


def table_lines(text: io.StringIO) -> list[str]:
    return [line for line in text.getvalue().splitlines() if "│" in line]


LONG = " ".join(["word"] * 100)


def test_rows_of_long_texts_stay_one_line_each(screen: Callable[[int], io.StringIO]) -> None:
    shown = screen(160)
    rows = [[k, 12345678, 0.5, LONG, "two\nlines\tand a tab", LONG, "short", "train"] for k in range(3)]
    console.print_rows(["n", "rows", "share", "sentence1", "sentence2", "sentence3", "s", "split"], rows)
    lines = table_lines(shown)
    assert len(lines) == 3
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        assert [cells[k] for k in (0, 1, 2, 4, 6, 7)] == [
            *(str(number), "12,345,678", "0.5", "two lines and a tab", "short", "train")
        ]
        assert cells[3].endswith("…")
        assert len(cells[3]) >= console.SHORTEST_CELL
        assert len(line) <= 160


def test_a_narrow_screen_gets_a_line_for_each_cell(screen: Callable[[int], io.StringIO]) -> None:
    shown = screen(60)
    console.print_rows(["number", "one", "two", "three"], [[k, LONG, LONG, "x"] for k in range(2)])
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table_lines(shown)]
    assert [name for name, _ in cells] == ["number", "one", "two", "three"] * 2
    assert [value for _, value in cells[::4]] == ["0", "1"]
    assert cells[1][1].startswith("word word word word")
    assert cells[1][1].endswith("…")


@pytest.mark.parametrize(
    "show",
    [
        lambda: console.print_rows(["a", *"bcdefgh"], [[LONG] * 8, ["x"] * 8]),
        lambda: console.print_table(["a", *"bcdefgh"], [[LONG] * 8, ["x"] * 8], title="b"),
        lambda: console.print_pairs("a", {"b": LONG, "c": LONG}),
        lambda: sys.stdout.write(str(Rows(["a", "b"], [[LONG, LONG], ["x", "y"]]))),
    ],
)
def test_a_pipe_gets_everything_in_a_line_a_row(
    show: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(console, "stdout", Console(emoji=False))
    show()
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "│" in line]
    assert len(lines) == 2
    assert LONG in lines[0]
    assert "…" not in printed


def test_no_rows_and_no_columns(screen: Callable[[int], io.StringIO]) -> None:
    shown = screen(60)
    console.print_rows(["number", "text"], [])
    assert "number" in shown.getvalue()


def test_characters_that_a_stream_cannot_encode_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding="ascii"))
    app(["tasks", "show", "sst2", "--json"], standalone_mode=False)  # a command line prepares the streams
    sys.stdout.flush()
    stream.truncate(0)
    stream.seek(0)
    values = {"café €": "\U0001f600\x85\\ \ud800"}
    console.print_json(values)
    console.print_text("café")
    console.print_table(["é"], [["…"]])
    sys.stdout.flush()
    text = stream.getvalue().decode("ascii")
    end = text.index("}") + 1
    assert json.loads(text[:end]) == values
    assert "caf\\xe9" in text[end:]
