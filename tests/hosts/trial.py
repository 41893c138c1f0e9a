"""A command that is disturbed in the middle, repeated like a launcher does, and compared with an undisturbed one."""

import shutil
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.cluster_kills import TASK, command, contents
from tests.hosts.host import Host
from tests.hosts.network import Network

BIN = Path(sys.executable).parent
CUT_S = 8
LIMIT_S = 400
MOST_COMMANDS = 5  # that a check repeats
TEMPORARY_FAILURE = 75


class Measured(NamedTuple):
    """What a check found.

    Attributes:
        wrong: the number of files that are missing, too many, or different.
        files: the number of files that were compared. The content of the record counts as one of them.
        commands: how many commands were needed. A job that its launcher starts again counts again.
    """

    wrong: int
    files: int
    commands: int

    @property
    def is_good(self) -> bool:
        """Whether the check passes."""
        return not self.wrong


Check = Callable[[], Measured]


class Hosts:
    """The hosts of the checks: one with the data and the teacher, and others.

    Args:
        world: a folder as `tests.benchmarks.cluster_kills.prepare` makes it.
    """

    def __init__(self, world: Path) -> None:
        self.network, self.world, self._count = Network(), world, 0

    def bare(self) -> Host:
        """Adds a host that has only the software."""
        self._count += 1
        return Host(self.network, self._count)

    def new(self) -> Host:
        """Adds a host that also has the data and the teacher."""
        host = self.bare()
        shutil.copytree(self.world, host.path(self.world))
        return host

    @cached_property
    def first(self) -> Host:
        """Returns the host of the undisturbed dump."""
        return self.new()

    @cached_property
    def expected(self) -> dict[str, str]:
        """Returns the content of the set that a single process writes."""
        self.first.run(*self.dump_command("plain"))
        return contents(self.first.path(self.world / "plain" / TASK))

    def dump_command(self, store: str | Path, **changes: Any) -> list[str]:
        """Returns the command of a dump on a host that has the data and the teacher."""
        return [str(BIN / "distill"), *command(self.world, str(store), **changes)]

    def compared(self, root: Path, commands: int) -> Measured:
        """Compares a set with that of a single process."""
        there, expected = contents(root), self.expected
        wrong = [name for name in there.keys() | expected.keys() if there.get(name) != expected.get(name)]
        return Measured(len(wrong), len(expected), commands)


class Trial:
    """A command on a host, which is repeated until it succeeds."""

    def __init__(self, host: Host, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        self._host, self._arguments, self._environment = host, arguments, environment
        self._start()

    def _start(self) -> None:
        self._process = self._host.start(*self._arguments, environment=self._environment)

    def disturbed(self, is_middle: Callable[[], bool], meanwhile: Callable[[], object]) -> "Trial":
        """Does something in the middle of the command.

        Raises:
            RuntimeError: if the command ends before the middle, so that nothing would be proven.
        """
        until = time.monotonic() + LIMIT_S
        while not is_middle():
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.kill()
                raise RuntimeError(f"not disturbed: {self._process.communicate()[0][-2000:]}")
            time.sleep(0.02)
        meanwhile()
        return self

    def commands(self) -> int:
        """Waits until the command has succeeded. Returns how often it ran.

        Raises:
            RuntimeError: if a command fails for good, or too many fail for a while.
        """
        for number in range(1, MOST_COMMANDS + 1):
            printed, _ = self._process.communicate(timeout=LIMIT_S)
            if self._process.returncode == 0:
                return number
            if self._process.returncode != TEMPORARY_FAILURE:
                break
            self._start()
        raise RuntimeError(f"exit code {self._process.returncode}: {printed[-2000:]}")


def cut(host: Host) -> None:
    """Unplugs a host for some seconds."""
    host.unplug()
    time.sleep(CUT_S)
    host.plug_in()
