"""What is done to the commands."""

import errno
import resource
import signal
from collections.abc import Collection
from dataclasses import dataclass

from pipeline.errors import PassingError
from tests.torture.shim import Fault

YEAR_S = 365 * 24 * 3600


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        fault: what happens at a file operation.
        codes: how the command may end, besides by finishing its work.
        share: of how many of the operations that differ from their neighbours it happens at, all or some at random.
        same_as_next: operations at which it does what it does at the next one, and which are not visited therefore.
        is_repeated: whether the same happens to the repeated command, before it is repeated undisturbed.
        is_short: whether the short form has it, too.
    """

    fault: Fault
    codes: frozenset[int]
    share: float = 0.1
    same_as_next: frozenset[str] = frozenset()
    is_repeated: bool = False
    is_short: bool = False


REFUSED = frozenset({2})
PASSES = frozenset({PassingError.exit_code})
TERMINATED = frozenset({-signal.SIGTERM, 128 + signal.SIGTERM})
FAULTS = {
    "SIGKILL": Kind(Fault(signal.SIGKILL), frozenset({-signal.SIGKILL}), 1, frozenset({"flush"}), is_short=True),
    "SIGKILL twice": Kind(Fault(signal.SIGKILL), frozenset({-signal.SIGKILL}), is_repeated=True),
    "SIGTERM": Kind(Fault(signal.SIGTERM), TERMINATED),
    "SIGHUP": Kind(Fault(signal.SIGHUP), frozenset({-signal.SIGHUP, 128 + signal.SIGHUP})),
    "Ctrl-C twice": Kind(Fault(signal.SIGINT, repeats=1), frozenset({-signal.SIGINT, 130})),
    "full disk": Kind(Fault(error=errno.ENOSPC), PASSES, 1, frozenset({"remove", "rename"}), is_short=True),
    "read-only": Kind(Fault(error=errno.EROFS), REFUSED),
    "no files left": Kind(Fault(resource=resource.RLIMIT_NOFILE, limit=3), REFUSED, is_short=True),
    "no memory left": Kind(Fault(resource=resource.RLIMIT_AS, limit=2**20), REFUSED),
    "clock goes back": Kind(Fault(clock_step_s=-YEAR_S), frozenset()),
}


def points(operations: tuple[str, ...], left_out: Collection[str] = ()) -> list[int]:
    """The numbers of the operations that differ from their neighbours: of writes to a file first, middle and last.

    Args:
        operations: names and paths.
        left_out: names of those that are not wanted.
    """
    kept, start = [], 0
    for stop in range(1, len(operations) + 1):
        if stop == len(operations) or operations[stop] != operations[start]:
            kept += sorted({start, (start + stop - 1) // 2, stop - 1})
            start = stop
    return [number + 1 for number in kept if operations[number].split()[0] not in left_out]
