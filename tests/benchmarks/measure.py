"""Timing of alternatives side by side: in turn, several rounds, medians; only ratios within one run mean anything."""

import statistics
import time
from collections.abc import Callable


def interleaved(alternatives: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Median seconds of each alternative; one call each per round, the order turned every round, one warm-up."""
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            alternatives[name]()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratios(seconds: dict[str, float]) -> list[list[object]]:
    """A row per alternative: name, median milliseconds, and how many times faster than the first it is."""
    first = next(iter(seconds.values()))
    return [[name, value * 1000, first / value] for name, value in seconds.items()]
