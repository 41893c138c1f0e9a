"""A command's log for machines, ``--log-file``: a JSON object a line, appended, so that repeated commands follow on.

Every line has ``time`` (UTC), ``process`` (its number and host) and ``event``: ``start``, ``note``, ``warning``,
``progress``, ``error``, ``end``. A command that was killed has no ``end``.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_descriptor: int | None = None


@contextmanager
def written_to(path: Path | None) -> Iterator[None]:
    """Writes what the block tells to a file, from its start to its end; to none without a path.

    Raises:
        OSError: if the file cannot be opened to write.
    """
    global _descriptor
    if path is None:
        yield
        return
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    _descriptor, started, code = opened, time.monotonic(), 0
    event("start", command=sys.argv)
    try:
        yield
    except BaseException as error:
        code = _exit_code(error)
        raise
    finally:
        event("end", exit_code=code, seconds=round(time.monotonic() - started, 3))
        _descriptor = None
        os.close(opened)


def event(name: str, **values: Any) -> None:
    """Adds a line, if there is a log; that it cannot be written stops no command."""
    global _descriptor
    if _descriptor is None:
        return
    line = {"time": datetime.now(UTC).isoformat(), "process": f"{os.getpid()}@{platform.node()}", "event": name}
    text = json.dumps(line | values, ensure_ascii=False, default=str) + "\n"
    try:
        os.write(_descriptor, text.encode(errors="backslashreplace"))  # at once, so that lines of processes stay whole
    except OSError as error:
        _descriptor = None
        sys.stderr.write(f"warning: --log-file cannot be written any more: {error.strerror}\n")


def _exit_code(error: BaseException) -> int:
    """What a command ends with that raises this; what is no way to end tells of itself first."""
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)  # the latter of typer's Exit
    if isinstance(error, SystemExit) or hasattr(error, "exit_code"):
        return code if isinstance(code, int) else int(code is not None)
    event("error", message=f"{type(error).__name__}: {error}")
    return 1
