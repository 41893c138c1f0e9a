"""One try: a command in a fork of this process, which has imported everything, with what is to happen to it."""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent

from typer.main import get_command

from distill.commands import app
from tests.torture.launcher import launch
from tests.torture.shim import UNDISTURBED, Fault, arm

PATIENCE_S = 300  # much more than a try takes on a busy machine; a command that waits for another never ends
COMMANDS = get_command(app)  # what `app` would make anew in each fork
END = "\x00"  # of the operations in the log


@dataclass(frozen=True)
class Outcome:
    """What came of a try.

    Attributes:
        code: exit code, negative for the signal that ended it; None if it hung.
        stderr: what it printed.
        operations: names and paths of the file operations it did, if they were logged.
        modules: what it had imported at its end, if that was logged.
        seconds: how long it took.
    """

    code: int | None
    stderr: str
    operations: tuple[str, ...]
    modules: tuple[str, ...]
    seconds: float


class Try:
    """A command on its way, in a process of its own.

    Args:
        arguments: its words.
        out: the folder whose file operations count.
        at: number of the one at which it has its fault, from 1; 0 for none.
        fault: what happens then.
        is_logged: whether its operations are written down.
        rank: of two processes that a launcher has joined for it, the one that all this is about; None for no launcher.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        out: Path,
        at: int = 0,
        fault: Fault = UNDISTURBED,
        is_logged: bool = False,
        rank: int | None = None,
    ) -> None:
        self._started = time.monotonic()
        self._stderr, self._other_stderr, self._log = map(os.memfd_create, ("stderr", "other", "log"))
        self._alive, is_alive = os.pipe()  # at its end when all processes are that have inherited the other end
        disturbed = partial(_command, arguments, self._stderr, out, at, fault, self._log if is_logged else -1)
        self.pid = os.fork()
        if self.pid == 0:
            other = partial(_command, arguments, self._other_stderr, out)
            _end_with(disturbed() if rank is None else _launched(disturbed, other, rank))
        os.close(is_alive)
        self._pidfd = os.pidfd_open(self.pid)

    def ended_within(self, seconds: float) -> bool:
        """Whether it ends before so much time has passed."""
        return bool(select.select([self._pidfd], [], [], seconds)[0])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends it a signal; it may have ended."""
        os.kill(self.pid, number)

    def outcome(self, patience_s: float = PATIENCE_S) -> Outcome:
        """Waits for its end; a try that does not end is killed."""
        has_ended = self.ended_within(patience_s)
        if not has_ended:
            self.kill()
        _, status = os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        code = os.waitstatus_to_exitcode(status) if has_ended else None
        stderr = _content(self._stderr) + indent(_content(self._other_stderr), "  ")
        log = _content(self._log)
        operations, _, modules = log.partition(END)
        seconds = time.monotonic() - self._started
        return Outcome(code, stderr, tuple(operations.splitlines()), tuple(modules.splitlines()), seconds)

    def wait_for_orphans(self) -> None:
        """Waits until the processes have ended that it has left behind; they are to notice that by themselves."""
        assert select.select([self._alive], [], [], PATIENCE_S)[0], "an orphan has not ended"
        os.close(self._alive)


def _command(
    arguments: Sequence[str], stderr: int, out: Path, at: int = 0, fault: Fault = UNDISTURBED, log: int = -1
) -> int:
    """Runs a command in this process, which is there for nothing else; returns its exit code."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    os.dup2(stderr, 2)
    arm(out, at, fault, log)
    code = _exit_code(arguments)
    if log >= 0:
        os.write(log, (END + "\n".join(sys.modules)).encode())
    return code


def _launched(disturbed: Callable[[], int], other: Callable[[], int], rank: int) -> int:
    """Runs two programs that torch.distributed joins; returns the exit code of the disturbed one if that has failed."""
    codes = launch([disturbed, other] if rank == 0 else [other, disturbed])
    return codes[rank] or codes[1 - rank]


def _end_with(code: int) -> None:
    """Ends this process as another one has ended."""
    if code < 0:
        with suppress(OSError):  # of SIGKILL, which nothing handles
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _exit_code(arguments: Sequence[str]) -> int:
    """Runs a command as the program ``distill`` would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["distill", *arguments]
    try:
        COMMANDS()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def _content(descriptor: int) -> str:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    text = os.pread(descriptor, size, 0).decode(errors="replace")
    os.close(descriptor)
    return text
