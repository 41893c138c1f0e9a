"""What users read when something is wrong, whole: ``expected.txt`` has every message as it is printed.

Other tests match what a message names, never how it is worded. After a change of wording, write the file anew with
``python -m tests.messages``, and read its diff.
"""

import difflib
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import distill
from distill.commands import app
from pipeline.errors import DistillError
from tests.messages.mistakes import MISTAKES, Mistake
from tests.messages.world import write_world

EXPECTED = Path(__file__).with_name("expected.txt")
UPDATE = "UPDATE_MESSAGES"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    write_world(folder)
    return folder


def printed(line: str) -> str:
    """What a line of Python or a command prints that fails."""
    if line.startswith(">>> "):
        try:
            eval(line.removeprefix(">>> "), {"distill": distill})  # noqa: S307 - lines of ours
        except DistillError as error:
            return f"{type(error).__name__}: {error}\n"
        raise AssertionError(f"no error: {line}")
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code, line
    return f"{result.stderr}exit code {result.exit_code}\n"


def met(mistake: Mistake, world: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A mistake and what is printed, with no path of this machine and no hash."""
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    mistake.before()
    with mistake.meanwhile():
        text = printed(mistake.line)
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    text = re.sub(r"\b[0-9a-f]{12}…|\b[0-9a-f]{64}\b", "HASH", text)
    note = f"# {mistake.note}\n" if mistake.note else ""
    return f"{note}$ {mistake.line}\n{text}".replace("$ >>>", ">>>")


def test_what_users_read(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = []
    for section, mistakes in MISTAKES.items():
        parts = [met(one, world, tmp_path / f"{section}-{k}", monkeypatch) for k, one in enumerate(mistakes)]
        sections.append("\n".join([f"{section}\n{'=' * len(section)}\n", *parts]))
    found = "\n\n".join(sections)
    if UPDATE in os.environ:
        EXPECTED.write_text(found)
    expected = EXPECTED.read_text()
    changes = difflib.unified_diff(expected.splitlines(True), found.splitlines(True), "expected", "found")
    assert not "".join(changes), "see `python -m tests.messages`"
