"""Commands in processes of their own, each of them once: the two stages never share a process."""

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import console
from pipeline.errors import DistillError
from pipeline.files import sha256
from pipeline.work import Workspace


@dataclass(frozen=True)
class Command:
    """A ``distill`` command that makes a folder.

    Attributes:
        arguments: what follows ``distill``.
        makes: the file that is there once it has finished.
        reads: what its result depends on, but for its arguments: texts, or files, whose bytes count.
        record: the file that stores that it has finished, and how long that took.
    """

    arguments: tuple[str, ...]
    makes: Path
    reads: tuple[str | Path, ...]
    record: Path

    @property
    def line(self) -> str:
        """The command as one types it."""
        return shlex.join(["distill", *self.arguments])


def run_once(command: Command) -> dict[str, Any]:
    """Runs a command, unless it has finished with the same arguments and of the same files.

    Returns:
        Its result: ``seconds`` (None if it went on from an earlier try).

    Raises:
        DistillError: if it fails; it has said why.
    """
    settings = {"command": command.line, "reads": content_sha256(command.reads)}
    work = Workspace(
        command.record.parent, settings, command.line, title="a command", record_name=command.record.name, redo=True
    )
    if work.start() == "finished":
        if command.makes.is_file():
            return work.result()
        work.reopen()
    is_new = not command.makes.parent.exists()
    console.note(f"$ {command.line}")
    start = time.perf_counter()
    _run(command)
    seconds = time.perf_counter() - start if is_new else None
    work.finish({"seconds": seconds})
    return work.result()


def content_sha256(parts: Sequence[str | Path]) -> str:
    """A hash of texts, and of the bytes of files, in their order."""
    hashes = [part if isinstance(part, str) else sha256(part) for part in parts]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def _run(command: Command) -> None:
    """Its results are printed nowhere, its progress and its errors where those of this process are."""
    program: list[str] = [sys.executable, "-P", "-m", "distill.commands.parent", *command.arguments]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        code = process.wait()
    if code != 0:
        raise DistillError(f"exit code {code}: {command.line}")
