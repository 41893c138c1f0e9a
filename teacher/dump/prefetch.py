"""Work beside the forward pass, in threads: tokenisers and Parquet let go of Python's lock."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def start(job: Callable[[], T]) -> Callable[[], T]:
    """Starts a job; call what is returned to wait for its result, or the error that it raised.

    The thread does not keep a stopped command alive: what a job writes must be whole or not there.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(job())
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            outcome.set_exception(error)

    Thread(target=run, daemon=True).start()
    return outcome.result


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order; the next one is made while the caller works on this one."""
    done = object()
    coming = start(lambda: next(items, done))
    while (item := coming()) is not done:
        coming = start(lambda: next(items, done))
        yield item  # type: ignore[misc]


def write_behind(items: Iterator[T], write: Callable[[T], object]) -> None:
    """Writes each item, in order, while the next one is made; at most one at a time.

    A write that has begun is waited for, also if the next item fails: it may be a file that need not be written again.
    """
    finished: Callable[[], object] = start(lambda: None)
    try:
        for item in items:
            finished()
            finished = start(partial(write, item))
    finally:
        finished()
