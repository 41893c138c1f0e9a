"""The steps of applications, forked from a process that has imported the libraries: each saves seconds of imports.

How they are started for users is tested in tests/distill/apps/test_steps.py and results/test_commands.py.
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

from distill.apps import steps
from distill.apps.results import plan
from tests.helpers.commands import distill


def fork_steps(patch: pytest.MonkeyPatch) -> None:
    """Commands that ``distill quickstart`` and ``distill results`` start from now on are forked."""
    patch.setattr(steps, "subprocess", SimpleNamespace(run=_run))
    patch.setattr(plan, "subprocess", SimpleNamespace(Popen=_Step, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL))


def fork_all_steps() -> None:
    """The same for as long as this process lives; what `tests.helpers.commands.distill` does first."""
    fork_steps(pytest.MonkeyPatch())


def _run(command: Sequence[str], cwd: Path, **_: Any) -> "subprocess.CompletedProcess[str]":
    assert command[1:4] == ["-P", "-m", "distill"]
    process = distill(*command[4:], folder=cwd)
    out, error = process.communicate()
    assert process.returncode is not None
    return subprocess.CompletedProcess(command, process.returncode, out, error)


class _Step:
    """A running step, as `subprocess.Popen` has it."""

    def __init__(self, program: Sequence[str], **_: Any) -> None:
        assert program[1:4] == ["-P", "-m", "distill.commands.parent"]
        self._process = distill(*program[4:], first=_end_with_parent)

    def __enter__(self) -> "_Step":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self) -> int | None:
        _, error = self._process.communicate()
        os.write(2, error.encode())  # where the step would have written
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
