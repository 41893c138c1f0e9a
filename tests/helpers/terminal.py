"""Commands and programs as in a terminal."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.forked import Forked
from tests.helpers.forked_steps import fork_steps

OPERATORS = {"|", ">", "<", "&&", "||", ";", "&"}


class Terminal:
    """A folder to run commands in.

    Args:
        folder: where they run.
        environment: more variables.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = dict(environment or {})

    def line(self, line: str) -> str:
        """What a line for the shell prints; the test fails if it does."""
        words = shlex.split(line)
        simple = words[0] == "distill" and not OPERATORS & set(words)
        return self._forked(_distill, line) if simple else self.program("bash", "-euo", "pipefail", "-c", line)

    def python(self, code: str) -> str:
        """What a Python program prints; the test fails if it does."""
        return self._forked(_python, code)

    def program(self, *command: str) -> str:
        """What a command prints, run without a fork; the test fails if it does."""
        environment = os.environ | self.environment
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _forked(self, run: Callable[[str], None], text: str) -> str:
        process = Forked(partial(run, text), self.folder, self.environment)
        out, error = process.communicate()
        assert process.returncode == 0, f"{text}\n{out}\n{error}"
        return out


def _distill(line: str) -> None:
    from distill.commands import app

    sys.argv = shlex.split(line)
    if sys.argv[1:2] == ["quickstart"]:
        fork_steps(pytest.MonkeyPatch())  # of this process, which ends with the command
    app()


def _python(code: str) -> None:
    exec(compile(code, "<documentation>", "exec"), {"__name__": "__main__"})  # noqa: S102  (a program of ours)
