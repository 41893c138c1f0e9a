"""`distill` in a process of its own, or in this one, and ways for it to die."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

from typer.testing import CliRunner, Result

from pipeline.cli import app


def invoke(*arguments: object) -> Result:
    """What a command does in this process, with what it printed and its exit code."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def distill(
    *arguments: object, program: str = "distill", preexec_fn: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    """Starts ``distill`` in a process of its own, on one thread as the tests themselves."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [program, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=preexec_fn,
    )


def kill_when(process: subprocess.Popen[str], is_time: Callable[[], bool]) -> None:
    """Kills a process outright as soon as ``is_time``, and makes sure that it had not ended before."""
    while process.poll() is None and not is_time():
        time.sleep(0.001)
    process.kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, error
