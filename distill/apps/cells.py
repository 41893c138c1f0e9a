"""Cells of an experiment: pieces of work that are done once, each with a record in a `Workspace`.

A cell is a `distill` command in its own process, such as a dump or a training, or a measurement in this one.
"""

import hashlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pipeline import console
from pipeline.errors import DistillError
from pipeline.files import sha256
from pipeline.resumable import Workspace


@dataclass(frozen=True)
class Command:
    """A ``distill`` command that makes a folder.

    Attributes:
        arguments: what follows ``distill``.
        makes: the file that exists once it has finished.
        reads: what its result depends on besides its arguments: texts, or files, of which the content is hashed.
        record: the file that records that it has finished, and its duration.
    """

    arguments: tuple[str, ...]
    makes: Path
    reads: tuple[str | Path, ...]
    record: Path

    @property
    def line(self) -> str:
        """The command as one types it."""
        return shlex.join(["distill", *self.arguments])

    def run_once(self) -> float | None:
        """Runs it, unless it has finished with the same arguments and the same files.

        Returns: Its duration in seconds, None if it resumed an earlier try.

        Raises:
            DistillError: if it fails. It has printed the reason.
        """

        def run() -> dict[str, Any]:
            is_new = not self.makes.parent.exists()
            start = time.perf_counter()
            run_command(self.arguments)
            # The time of a resumed command would cover only its last part.
            return {"seconds": time.perf_counter() - start if is_new else None}

        settings = {"command": self.line, "reads": content_sha256(self.reads)}
        seconds: float | None = run_once(self.record, settings, run, (self.makes,), self.line)["seconds"]
        return seconds


def run_once(
    record: Path,
    settings: dict[str, Any],
    make: Callable[[], dict[str, Any]],
    files: Iterable[Path],
    command: str = "",
) -> dict[str, Any]:
    """Returns the result of a cell: that of an earlier try with the same settings if its files exist, or a new one."""
    work = Workspace(record.parent, settings, command, title="a cell", record_name=record.name, redo=True)
    if work.start() == "finished":
        if all(path.is_file() for path in files):
            return work.result()
        work.reopen()
    work.finish(make())
    return work.result()


def run_command(arguments: Sequence[str], folder: Path | None = None) -> str:
    """Runs a ``distill`` command, printed before it runs, in a process that ends with this one.

    The two stages never share a process.

    Args:
        arguments: what follows ``distill``.
        folder: the folder in which it runs. There its progress is not shown, only its duration.

    Returns: What it printed on stdout.

    Raises:
        DistillError: if it fails, with its own message if that has not been printed.
    """
    line = shlex.join(["distill", *arguments])
    # Without markup: rich would take a path such as `[new] bert` for a style.
    console.stderr.print(f"$ {line}", style="bold", soft_wrap=True, markup=False, highlight=False)
    start = time.perf_counter()
    # -P keeps the working folder out of the import path, where files of the user could shadow modules.
    program: list[str] = [sys.executable, "-P", "-m", "distill.commands.parent", *arguments]
    with TemporaryFile("w+", encoding="utf-8") as out, TemporaryFile("w+", encoding="utf-8") as errors:
        own_errors = None if folder is None else errors
        # The pipe stays open as long as this process lives. Its end stops the command (see distill.commands.parent).
        with subprocess.Popen(program, cwd=folder, stdin=subprocess.PIPE, stdout=out, stderr=own_errors) as process:  # noqa: S603
            code = process.wait()
        out.seek(0)
        errors.seek(0)
        if code != 0:
            own_words = "" if folder is None else errors.read().strip()
            raise DistillError(f"the step failed:\n{own_words}" if own_words else f"{_ending(code)}: {line}")
        if folder is not None:
            console.note(f"  {time.perf_counter() - start:.0f} s")
        return out.read()


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed, probably because memory was full. Free some and repeat the command, and it resumes"
    return f"exit code {code}"


def content_sha256(parts: Sequence[str | Path]) -> str:
    """A hash of texts, and of the bytes of files, in their order."""
    hashes = [part if isinstance(part, str) else sha256(part) for part in parts]
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()


def weights_of(model: str | Path) -> tuple[Path, ...]:
    """Returns the files with a model's weights. Empty if the model is on the hub."""
    return tuple(sorted(path for pattern in ("*.safetensors", "*.bin") for path in Path(model).glob(pattern)))
