"""Disturbs one command in every way, repeats it each time, and counts what went wrong."""

import importlib
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.cases import Case
from tests.torture.faults import FAULTS, points
from tests.torture.judge import difference, files, problems
from tests.torture.visit import Outcome, Try

KILLED = frozenset({-signal.SIGKILL})
BUSY = 2  # the exit code of a command that another one is in the way of


@dataclass
class Counts:
    """What came of the tries of a fault on a command: how many there were, and how often what was wrong."""

    tries: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


class Tortured:
    """A command, its undisturbed result, and a folder to disturb it in.

    Args:
        name: of the command.
        case: what it is.
        world: what it reads.
        out: what it writes; the same path each time, since records hold it.
        seed: of the places and times; None for others each time.
        tell: is told of everything that is wrong.
    """

    def __init__(
        self, name: str, case: Case, world: Path, out: Path, seed: int | None, tell: Callable[[str], None]
    ) -> None:
        self._name, self._world, self._out, self._case, self._tell = name, world, out, case, tell
        self._arguments = case.arguments(world, out)
        self._random = random.Random(seed)  # noqa: S311
        self._refresh()
        whole = Try(self._arguments, out, is_logged=True).outcome()
        assert whole.code == 0, f"{name}: {whole.stderr}"
        self.operations, self._seconds = whole.operations, whole.seconds
        self._reference = files(out)
        self.counts: dict[str, Counts] = {}
        for module in whole.modules:  # so that no try has to
            with suppress(Exception):
                importlib.import_module(module)

    def at_operations(self, fault: str, most: int | None) -> None:
        """Has a fault at file operations: at its share of them, or of so many at most."""
        kind = FAULTS[fault]
        numbers = points(self.operations)
        wanted = max(1, round(kind.share * min(len(numbers), most or len(numbers))))
        for number in sorted(self._random.sample(numbers, wanted)):
            self._refresh()
            first = Try(self._arguments, self._out, number, kind.fault).outcome()
            if kind.is_repeated:
                again = self._random.randint(1, len(self.operations))
                Try(self._arguments, self._out, again, kind.fault).outcome()
            self._count(fault, f"operation {number}, {self.operations[number - 1]}", first, kind.codes)

    def at_random_times(self, tries: int) -> None:
        """Kills at any time, not only where there is a file operation."""
        for _ in range(tries):
            self._refresh()
            running, seconds = Try(self._arguments, self._out), self._random.uniform(0, self._seconds)
            if not running.ended_within(seconds):
                running.kill()
            self._count("SIGKILL at any time", f"after {seconds:.3f} s", running.outcome(), KILLED)

    def two_at_once(self, tries: int) -> None:
        """Runs the command twice at the same time; one of them may be told that the other is in its way."""
        for _ in range(tries):
            self._refresh()
            one = Try(self._arguments, self._out)
            time.sleep(self._random.uniform(0, self._seconds))
            other = Try(self._arguments, self._out)
            outcomes = (one.outcome(), other.outcome())
            worse = max(outcomes, key=lambda outcome: (outcome.code is None, outcome.code or 0))
            self._count("two at once", f"{[outcome.code for outcome in outcomes]}", worse, {BUSY})

    def _count(self, fault: str, where: str, first: Outcome, codes: frozenset[int] | set[int]) -> None:
        again = Try(self._arguments, self._out).outcome()
        found = files(self._out)
        wrong = problems(first, again, codes, found, self._reference)
        counts = self.counts.setdefault(fault, Counts())
        counts.tries += 1
        counts.wrong.update(wrong)
        if wrong:
            said = f"{first.code}: {first.stderr[-1500:]}\nrepeated, {again.code}: {again.stderr[-1500:]}"
            self._tell(f"{self._name}, {fault}, {where}: {wrong}\n{difference(found, self._reference)}\n{said}")

    def _refresh(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)
        if self._case.before:
            shutil.copytree(self._world / self._case.before, self._out)
        else:
            self._out.mkdir()
