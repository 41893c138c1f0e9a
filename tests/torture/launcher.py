"""A launcher of processes that torch.distributed joins, which does at their end what `torchrun` does, and no more."""

import os
import signal
import time
from collections.abc import Callable, Sequence

from tests.helpers.commands import ranks

LOOKS_EVERY_S = 0.1  # torchrun's `--monitor-interval`


def launch(programs: Sequence[Callable[[], int]]) -> list[int]:
    """Runs programs, each in a process with a rank; when one of them has failed, the others get SIGTERM.

    Returns:
        Their exit codes, negative for a signal.
    """
    pids = [_forked(*one) for one in zip(programs, ranks(len(programs)), strict=True)]
    codes: dict[int, int] = {}
    while len(codes) < len(pids) and not any(codes.values()):
        time.sleep(LOOKS_EVERY_S)
        codes |= _ended(set(pids) - codes.keys(), os.WNOHANG)
    rest = set(pids) - codes.keys()
    for pid in rest:
        os.kill(pid, signal.SIGTERM)
    codes |= _ended(rest)
    return [codes[pid] for pid in pids]


def _ended(pids: set[int], options: int = 0) -> dict[int, int]:
    """The exit codes of those that have ended; of all of them, unless the options are not to wait."""
    ends = [os.waitpid(pid, options) for pid in pids]
    return {pid: os.waitstatus_to_exitcode(status) for pid, status in ends if pid}


def _forked(program: Callable[[], int], environment: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.update(environment)
            os._exit(program())
        finally:  # whatever is raised, a fork of pytest must not go on as another pytest
            os._exit(1)
    return pid
