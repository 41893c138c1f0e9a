"""Times functions in turns, finds how much work fills a turn, and measures the throughput of a student."""

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pipeline.environment import tokenizers_in_parallel

if TYPE_CHECKING:
    from student.predict.predictor import Predictor

ROUNDS = 5
TURN_S = 0.1  # of a measurement that somebody waits for
# From one word to thirty, about thirteen in the mean.
SENTENCES = (
    "Great!",
    "Not what I had hoped for.",
    "The food was cold and the waiter never came back.",
    "A man in a blue shirt is playing a guitar on the street.",
    "The company sold more cars than in any quarter before, and its profit rose by four percent.",
    "How do I change the address of an order that was already paid but has not been shipped yet?",
    "The first hour is slow, but then the film finds its pace, and by its end it has moved even those who came late.",
)
COPIES = 32
Clock = Callable[[], float]


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Sets the threads of torch and `tokenizers`. The compiled kernels share torch's OpenMP."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with tokenizers_in_parallel(count > 1):
            yield
    finally:
        torch.set_num_threads(before)


def interleaved(
    alternatives: dict[str, Callable[[], object]],
    rounds: int = ROUNDS,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Returns the median seconds of each alternative.

    Each round calls every alternative once, in an order that rotates.

    Args:
        alternatives: the functions to time, by name. A call returns when its work is done, also on a GPU.
        rounds: the number of timed rounds, after one round of warm-up.
        clock: returns seconds. For work on one thread, the clock of the process leaves out the time of other programs.
    """
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        # Rotating the order spreads slow phases of the machine, such as thermal throttling, over all alternatives.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = clock()
            alternatives[name]()
            # Round 0 warms up caches, allocators and GPU kernels.
            if number:
                seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def fitting_rows(
    make: Callable[[int], Callable[[], object]], most: int, seconds: float, clock: Clock = time.perf_counter
) -> tuple[int, int]:
    """Finds how much work fills a turn of so many seconds. The trials also serve as a warm-up.

    Args:
        make: prepares work on a number of rows.
        most: the maximum number of rows.
        seconds: the duration of a turn.
        clock: returns seconds.

    Returns: Rows per call, which are a power of two or ``most``, and calls per turn. Both are at least one.
    """
    rows = 1
    make(rows)()
    while True:
        call = make(rows)
        start = clock()
        call()
        took = clock() - start
        # Doubling stops before a call could take longer than its turn.
        if rows >= most or 2 * took > seconds:
            return rows, max(1, int(seconds / took))
        rows = min(2 * rows, most)


def processor() -> str:
    """The processor's name, if the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "this processor")


def texts_per_second(predictor: "Predictor") -> float:
    """Measures how many inputs a second a student answers on this machine, in less than a second if it is quick.

    Runs do not store their texts, so every student reads the same sentences. Those of pairs get another one each.
    """
    first = list(SENTENCES) * COPIES
    second = first[::-1] if predictor.is_pair else None

    def make(rows: int) -> Callable[[], object]:
        return lambda: predictor.columns(first[:rows], second and second[:rows])

    rows, calls = fitting_rows(make, len(first), TURN_S)
    call = make(rows)
    seconds = interleaved({"student": lambda: [call() for _ in range(calls)]})["student"]
    return rows * calls / seconds
