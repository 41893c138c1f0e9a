"""Steps of an application: `distill` commands, each in its own process and printed before it runs."""

import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.errors import DistillError


def run_step(folder: Path, *arguments: str) -> str:
    """Runs one command in a folder and returns its output. The two stages never share a process.

    Raises:
        DistillError: if the command fails, with its own message.
    """
    # Without markup: rich would take a path such as `[new] bert` for a style.
    line = f"$ distill {shlex.join(arguments)}"
    console.stderr.print(line, style="bold", soft_wrap=True, markup=False, highlight=False)
    start = time.perf_counter()
    # -P keeps the working folder out of the import path, where files of the user could shadow modules.
    command: list[Any] = [sys.executable, "-P", "-m", "distill", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise DistillError(f"the step failed:\n{done.stderr.strip()}")
    console.note(f"  {time.perf_counter() - start:.0f} s")
    return done.stdout
