"""Timing of alternatives side by side: in turn, several rounds, medians; only ratios within one run mean anything."""

import statistics
import time
from collections.abc import Callable

Clock = Callable[[], float]


def wall_clock() -> float:
    """Seconds since some moment, as they pass for everybody."""
    return time.perf_counter()


def interleaved(
    alternatives: dict[str, Callable[[], object]],
    rounds: int = 5,
    advance: Callable[[], None] = lambda: None,
    clock: Clock = wall_clock,
) -> dict[str, float]:
    """Median seconds of each alternative; one call each per round, the order turned every round, one warm-up.

    Args:
        alternatives: what is timed, by name; a call returns when its work is done, on a GPU too.
        rounds: how many are timed.
        advance: called after every call.
        clock: tells seconds; that of the process, for work on one thread, does not mind what else the machine does.
    """
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = clock()
            alternatives[name]()
            if number:
                seconds[name].append(clock() - start)
            advance()
    return {name: statistics.median(values) for name, values in seconds.items()}


def fitting_rows(
    make: Callable[[int], Callable[[], object]], most: int, seconds: float, clock: Clock = wall_clock
) -> tuple[int, int]:
    """How much work fills a turn of so many seconds; trying it out warms up as well.

    Args:
        make: prepares work on a number of rows.
        most: rows that are not exceeded.
        seconds: how long a turn may take.
        clock: tells seconds.

    Returns:
        Rows of a call, a power of two or ``most``, and how many calls make a turn; at least one of each.
    """
    rows = 1
    make(rows)()
    while True:
        call = make(rows)
        start = clock()
        call()
        took = clock() - start
        if rows >= most or 2 * took > seconds:
            return rows, max(1, int(seconds / took))
        rows = min(2 * rows, most)
