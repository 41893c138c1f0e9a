"""How fast systems label texts on one core, beside the default student."""

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import process_time

from distill.apps.bench.run import ROUNDS, using_threads
from distill.apps.bench.timing import fitting_rows, interleaved
from distill.apps.results.rows import Rows
from distill.apps.results.system import System

TURN_S = 0.25
MOST_ROWS = 1024


def sentences_per_second(system: System, reference: System, rows: Rows) -> tuple[float, float]:
    """Rows a second of a system, and of another one in turn with it, from text to logits on one core.

    Seconds are those of the processor, so that other programs on the machine count little.

    Args:
        system: what is timed.
        reference: what it is compared with; both in the same moments, for machines are not always equally fast.
        rows: whose texts are read, the first `MOST_ROWS` at most.
    """
    systems = {"it": system, "reference": reference}
    with using_threads(1), _one_thread_for_blas():
        makes = {name: _make(one, rows) for name, one in systems.items()}
        sizes = {
            name: fitting_rows(make, min(MOST_ROWS, len(rows)), TURN_S, process_time) for name, make in makes.items()
        }
        turns: dict[str, Callable[[], object]] = {
            name: _turn(makes[name](count), calls) for name, (count, calls) in sizes.items()
        }
        taken = interleaved(turns, ROUNDS, clock=process_time)
    rates = {name: count * calls / taken[name] for name, (count, calls) in sizes.items()}
    return rates["it"], rates["reference"]


def _make(system: System, rows: Rows) -> Callable[[int], Callable[[], object]]:
    first, second = rows.texts1, rows.texts2
    return lambda count: lambda: system.logits(first[:count], second[:count] if second else None)


def _turn(call: Callable[[], object], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            call()

    return run


def _one_thread_for_blas() -> AbstractContextManager[object]:
    """Without scikit-learn, which brings the library, nothing is timed that would use numpy's threads."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits
