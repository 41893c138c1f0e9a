"""Tortures one command after another."""

import resource
import tempfile
import time
from pathlib import Path

import torch

from tests.torture.cases import CASES
from tests.torture.faults import FAULTS, points
from tests.torture.table import keep, write_table
from tests.torture.tries import Tortured
from tests.torture.world import make_world

TRIES_AT_RANDOM = 0.2  # of as many as there are places


def torture(is_short: bool, most: int | None, commands: list[str], seed: int | None, results: Path | None) -> int:
    """Tortures commands.

    Args:
        is_short: whether only what the short form has.
        most: so many places of each at most.
        commands: these alone; empty for all.
        seed: of the places and times; None for others each time.
        results: where what came of it is kept, for the table in the documentation.

    Returns:
        How many tries found something; at most 100, as it becomes an exit code.
    """
    torch.set_num_threads(1)
    chosen = {name: case for name, case in CASES.items() if name in commands or not commands}
    if is_short:
        chosen = {name: case for name, case in chosen.items() if case.is_short}
    faults = [name for name, kind in FAULTS.items() if kind.is_short or not is_short]
    found = 0
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        (folder / "world").mkdir()
        make_world(folder / "world", is_short)
        for command, case in chosen.items():
            tortured = Tortured(command, case, folder / "world", folder / "out", seed, _say)
            found += _torture(tortured, command, faults, most, results)
    if results:
        write_table(results)
    return min(found, 100)


def _torture(tortured: Tortured, command: str, faults: list[str], most: int | None, results: Path | None) -> int:
    for fault in faults:
        tortured.at_operations(fault, most)
    at_random = max(1, round(TRIES_AT_RANDOM * (most or len(points(tortured.operations)))))
    tortured.at_random_times(at_random)
    tortured.two_at_once(at_random)
    for fault, counts in tortured.counts.items():
        if results:
            keep(results, command, fault, counts.tries, counts.wrong)
    tries = sum(counts.tries for counts in tortured.counts.values())
    wrong = sum(counts.wrong.total() for counts in tortured.counts.values())
    _say(f"{command}: {tries} tries, {wrong} found something; {_cpu_s():.0f} s of processor time so far")
    return wrong


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
