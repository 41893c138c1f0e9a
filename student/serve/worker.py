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
    """Does one piece of work at a time."""

    def __init__(self) -> None:
        self._thread, self._busy = ThreadPoolExecutor(1), Lock()

    async def do(self, work: Callable[[], T], is_short: bool = False) -> T:
        """What the work returns or raises; ``is_short`` says that the event loop may wait for it."""
        if is_short and self._busy.acquire(blocking=False):
            try:
                return work()
            finally:
                self._busy.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._alone, work)

    def _alone(self, work: Callable[[], T]) -> T:
        with self._busy:
            return work()
