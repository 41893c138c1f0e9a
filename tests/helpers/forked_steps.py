"""The steps of applications, forked from a process that has imported the libraries: each saves seconds of imports.

How they are started for users is tested in tests/distill/apps/test_cells.py.
"""

import os
import subprocess
import threading
from collections.abc import Sequence
from multiprocessing import connection, parent_process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distill.apps import cells
from tests.helpers.commands import distill


def fork_steps(patch: pytest.MonkeyPatch) -> None:
    """Commands that ``distill quickstart`` and ``distill sweep --experiment`` start from now on are forked."""
    patch.setattr(cells, "subprocess", SimpleNamespace(Popen=_Step, PIPE=subprocess.PIPE))


def fork_all_steps() -> None:
    """The same for as long as this process lives; what `tests.helpers.commands.distill` does first."""
    fork_steps(pytest.MonkeyPatch())


class _Step:
    """A running step, as `subprocess.Popen` has it."""

    def __init__(self, program: Sequence[str], *, cwd: Path | None, stdout: Any, stderr: Any, **_: Any) -> None:
        assert program[1:4] == ["-P", "-m", "distill.commands.parent"]
        self._process = distill(*program[4:], folder=cwd, first=_end_with_parent)
        self._stdout, self._stderr = stdout, stderr

    def __enter__(self) -> "_Step":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self) -> int | None:
        out, error = self._process.communicate()
        self._stdout.write(out)
        if self._stderr is None:
            os.write(2, error.encode())  # where the step would have written
        else:
            self._stderr.write(error)
        return self._process.returncode


def _end_with_parent() -> None:
    """Ends this process once the one that started it has ended, as `distill.commands.parent` does by a pipe."""
    parent = parent_process()
    assert parent is not None
    sentinel = parent.sentinel

    def watch() -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
