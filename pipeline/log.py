"""The machine-readable log of a command (``--log-file``): one JSON object per line, appended across repeated commands.

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
    """Logs the events of the block to a file, with a start and an end event. Without a path, logs nothing.

    Raises:
        OSError: if the file cannot be opened to write.
    """
    global _descriptor
    if path is None:
        yield
        return
    # O_APPEND makes the kernel place each write at the end, so several processes can share one log.
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
    """Appends a line if there is a log. A log that cannot be written never stops a command."""
    global _descriptor
    if _descriptor is None:
        return
    line = {"time": datetime.now(UTC).isoformat(), "process": f"{os.getpid()}@{platform.node()}", "event": name}
    text = json.dumps(line | values, ensure_ascii=False, default=str) + "\n"
    try:
        # One unbuffered write per line, so that lines of several processes do not mix.
        os.write(_descriptor, text.encode(errors="backslashreplace"))
    except OSError as error:
        _descriptor = None
        sys.stderr.write(f"warning: --log-file cannot be written any more: {error.strerror}\n")


def _exit_code(error: BaseException) -> int:
    """Returns the exit code of a command that raises this error, and logs it unless it is a regular exit."""
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)  # the latter of typer's Exit
    if isinstance(error, SystemExit) or hasattr(error, "exit_code"):
        return code if isinstance(code, int) else int(code is not None)
    event("error", message=f"{type(error).__name__}: {error}")
    return 1
