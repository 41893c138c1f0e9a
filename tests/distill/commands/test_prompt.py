"""The prompt of ``distill sql``, fed through a pipe, and once in a real pseudo-terminal."""

import os
import pty
import select as ready
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from distill.commands.prompt import completer, run_prompt
from pipeline.environment import history_file
from pipeline.errors import QueryError
from pipeline.query.catalog import open_catalog

CTRL_C, CTRL_D, TAB, UP, ENTER = "\x03", "\x04", "\t", "\x1b[A", "\r"


@pytest.fixture(scope="module")
def shelf(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the store, into which a catalog may be written."""
    return Path(shutil.copytree(store, tmp_path_factory.mktemp("shelf") / "store"))


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.fixture
def type_in(shelf: Path, keyboard: PipeInput, tmp_path: Path) -> Callable[[str], list[str]]:
    """Types keys at a prompt, then Ctrl-D, and says which queries were asked."""

    def run(keys: str) -> list[str]:
        asked: list[str] = []

        def answer(text: str) -> None:
            asked.append(text)
            if "wrong" in text:
                raise QueryError("the query failed: so it is")
            if "long" in text:
                raise KeyboardInterrupt

        keyboard.send_text(keys + CTRL_D)
        with open_catalog(shelf) as connection:
            run_prompt(connection, answer, tmp_path / "state" / "history")
        return asked

    return run


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        (f"select 1;{ENTER}select 2;{ENTER}", ["select 1;", "select 2;"]),
        (f"select 1{ENTER}  + 1{ENTER};{ENTER}", ["select 1\n  + 1\n  ;"]),
        (f"{ENTER} {ENTER}select 1;  {ENTER}", ["select 1;"]),
        (f"select nonsense{CTRL_C}select 1;{ENTER}", ["select 1;"]),
        (f"select wrong;{ENTER}select 1;{ENTER}", ["select wrong;", "select 1;"]),
        (f"select long;{ENTER}select 1;{ENTER}", ["select long;", "select 1;"]),
        ("", []),
    ],
)
def test_what_is_asked(type_in: Callable[[str], list[str]], keys: str, asked: list[str]) -> None:
    assert type_in(keys) == asked


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("from opi", {"opinion", "opinion_named", "opinion_confusion"}),
        ("from OPI", {"opinion", "opinion_named", "opinion_confusion"}),
        ("select sentence2, text_h", {"text_hash"}),
        ("from calibration", {"calibration", "calibration_error"}),
        ("select soft", {"softmax"}),
        ("select 1 inters", {"intersect"}),
        ("from nobody", set()),
    ],
)
def test_completion(shelf: Path, text: str, completed: set[str]) -> None:
    with open_catalog(shelf) as connection:
        found = completer(connection).get_completions(Document(text), CompleteEvent())
        assert {completion.text for completion in found} == completed


def test_commands(type_in: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert type_in(f".tables{ENTER}.help{ENTER}.tabels{ENTER}") == []
    shown = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.out.splitlines() if "│" in line]
    columns = dict(rows)
    assert columns["opinion"] == "12"
    assert columns["examples"] == "13"
    assert {"sets", "shards", "teachers", "roles"} < columns.keys()
    assert "Ctrl-D" in shown.err
    assert "'.tabels'. Did you mean '.tables'?" in shown.err


def test_a_history_that_cannot_be_kept_is_no_error(
    type_in: Callable[[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file, where a folder should be")
    assert type_in(f"select 1;{ENTER}") == ["select 1;"]
    assert "history" in capsys.readouterr().err


def test_where_the_history_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "distill" / "history"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert history_file() == tmp_path / "home" / ".local" / "state" / "distill" / "history"


def test_a_real_terminal(shelf: Path, tmp_path: Path) -> None:
    """Asks, errs, stops a runaway query by Ctrl-C, asks again, leaves."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    command = [sys.executable, "-m", "distill", "sql", "--store", str(shelf)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)

    seen = b""

    def read_until(text: str) -> None:
        nonlocal seen
        while text.encode() not in seen:
            assert ready.select([ours], [], [], 30)[0], f"{text!r} did not come, but {seen!r}"
            seen += os.read(ours, 4096)
        seen = seen.partition(text.encode())[2]

    try:
        read_until("distill>")
        os.write(ours, b"select 40 + 2 as answer;\r")
        read_until("42 │")
        read_until("distill>")
        os.write(ours, UP.encode())
        read_until("answer;")
        os.write(ours, CTRL_C.encode())
        read_until("distill>")
        os.write(ours, b"select nothing;\r")
        read_until("the query failed")
        read_until("distill>")
        os.write(ours, b"select count(*) from range(1000000000000) t(runaway);\r")
        read_until("\x1b[?2004l")  # the prompt has handed the line over
        while not ready.select([ours], [], [], 1)[0]:  # one that comes while the prompt still closes is lost
            process.send_signal(signal.SIGINT)
        read_until("distill>")
        os.write(ours, b"select count(*) as n from opin" + TAB.encode())
        read_until("ion")
        os.write(ours, b";\r")
        read_until("136 │")
        read_until("distill>")
        os.write(ours, CTRL_D.encode())
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        os.close(ours)
    history = list(FileHistory(tmp_path / "distill" / "history").load_history_strings())
    assert (history[0].strip(), history[-1]) == ("select count(*) as n from opinion;", "select 40 + 2 as answer;")
