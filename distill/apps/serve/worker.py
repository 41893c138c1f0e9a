"""Who works for a student: one thread, because torch uses all cores for a batch and a tokenizer is for one thread.

Going to a thread and back takes longer than a few short texts do; these are answered where they have arrived, on the
event loop, if the thread has nothing to do.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Does one piece of work at a time.

    Args:
        is_quick: whether a few short texts take it less time than going to the thread does.
    """

    def __init__(self, is_quick: bool) -> None:
        self._thread, self._busy, self._is_quick = ThreadPoolExecutor(1), Lock(), is_quick

    async def do(self, work: Callable[[], T], is_short: bool = False) -> T:
        """What the work returns or raises; ``is_short`` says that it is for a few short texts."""
        if is_short and self._is_quick and self._busy.acquire(blocking=False):
            try:
                return work()
            finally:
                self._busy.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._alone, work)

    def _alone(self, work: Callable[[], T]) -> T:
        with self._busy:
            return work()
