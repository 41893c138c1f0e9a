"""Disturbs one command in every way, repeats it each time, and counts what went wrong."""

import importlib
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.cases import Case, words
from tests.torture.faults import FAULTS, points
from tests.torture.judge import difference, files, problems
from tests.torture.shim import UNDISTURBED, Fault
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
        tell: is called with everything that is wrong.
    """

    def __init__(
        self, name: str, case: Case, world: Path, out: Path, seed: int | None, tell: Callable[[str], None]
    ) -> None:
        self._name, self._world, self._out, self._case, self._tell = name, world, out, case, tell
        self._arguments = words(case.command, world, out)
        self._beside = words(case.beside, world, out) if case.beside else None
        self._random = random.Random(seed)  # noqa: S311
        self._started: list[Try] = []
        self._refresh()
        whole, *others = self._run(is_logged=True)
        assert not any(one.code for one in (whole, *others)), f"{name}: {whole.stderr}"
        self.operations, self._seconds = whole.operations, whole.seconds
        self._reference = files(out, case.measured)
        self.counts: dict[str, Counts] = {}
        for module in whole.modules:  # so that no try has to
            with suppress(Exception):
                importlib.import_module(module)

    def at_operations(self, fault: str, most: int | None) -> None:
        """Has a fault at file operations: at its share of them, or of so many at most."""
        kind = FAULTS[fault]
        numbers = points(self.operations, kind.same_as_next)
        wanted = max(1, round(kind.share * min(len(numbers), most or len(numbers))))
        for number in sorted(self._random.sample(numbers, wanted)):
            self._refresh()
            first, *others = self._run(number, kind.fault)
            if kind.is_repeated:
                _, *beside = self._run(self._random.randint(1, len(self.operations)), kind.fault)
                others += beside
            self._count(fault, f"operation {number}, {self.operations[number - 1]}", first, kind.codes, others)

    def at_random_times(self, tries: int) -> None:
        """Kills at any time, not only where there is a file operation."""
        for _ in range(tries):
            self._refresh()
            (running, *beside), seconds = self._start(), self._random.uniform(0, self._seconds)
            if not running.ended_within(seconds):
                running.kill()
            first, others = running.outcome(), [one.outcome() for one in beside]
            self._count("SIGKILL at any time", f"after {seconds:.3f} s", first, KILLED, others)

    def two_at_once(self, tries: int) -> None:
        """Runs the command twice at the same time. One of them may be refused because of the other."""
        for _ in range(tries):
            self._refresh()
            one = self._try(self._arguments)
            time.sleep(self._random.uniform(0, self._seconds))
            other = self._try(self._arguments)
            outcomes = (one.outcome(), other.outcome())
            self._count("two at once", f"{[outcome.code for outcome in outcomes]}", _worst(outcomes), {BUSY}, [])

    def _start(self, at: int = 0, fault: Fault = UNDISTURBED, is_logged: bool = False) -> list[Try]:
        """The command on its way to its fault, and what runs beside it, without one."""
        running = [self._try(self._arguments, at, fault, is_logged)]
        return [*running, self._try(self._beside)] if self._beside else running

    def _try(self, arguments: Sequence[str], at: int = 0, fault: Fault = UNDISTURBED, is_logged: bool = False) -> Try:
        started = Try(arguments, self._out, at, fault, is_logged, self._case.rank)
        self._started.append(started)
        return started

    def _run(self, at: int = 0, fault: Fault = UNDISTURBED, is_logged: bool = False) -> list[Outcome]:
        return [one.outcome() for one in self._start(at, fault, is_logged)]

    def _count(
        self, fault: str, where: str, first: Outcome, codes: frozenset[int] | set[int], others: list[Outcome]
    ) -> None:
        again = _worst([*others, *self._run()])
        while self._started:
            self._started.pop().wait_for_orphans()
        found = files(self._out, self._case.measured)
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


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    return max(outcomes, key=lambda outcome: (outcome.code is None, abs(outcome.code or 0)))
