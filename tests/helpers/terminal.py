"""Commands and programs as in a terminal. Those of Python are forked from a process that has imported the libraries."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

LIBRARIES = ["accelerate", "datasets", "duckdb", "pipeline.cli", "s3fs", "torch", "transformers"]
OPERATORS = {"|", ">", "<", "&&", "||", ";", "&"}


class Terminal:
    """A folder to run commands in.

    Args:
        folder: where they run; the hub's cache is kept there, too.
        environment: more variables.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {"HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"} | dict(environment or {})

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
        context = get_context("forkserver")
        context.set_forkserver_preload(LIBRARIES)
        with TemporaryDirectory() as printed, patch.dict(os.environ, self.environment):
            process = context.Process(target=_within, args=(run, text, self.folder, self.environment, Path(printed)))
            process.start()
            process.join()
            out, error = (Path(printed, name).read_text(encoding="utf-8") for name in ("out", "error"))
        assert process.exitcode == 0, f"{text}\n{out}\n{error}"
        return out


def _within(run: Callable[[str], None], text: str, folder: Path, environment: dict[str, str], printed: Path) -> None:
    for stream, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT), stream)
    os.environ.update(environment)
    os.chdir(folder)
    run(text)


def _distill(line: str) -> None:
    from pipeline.cli import app

    sys.argv = shlex.split(line)
    app()


def _python(code: str) -> None:
    exec(compile(code, "<documentation>", "exec"), {"__name__": "__main__"})  # noqa: S102  (a program of ours)
