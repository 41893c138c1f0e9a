"""Batches of requests: all that arrive while a student works form its next batch.

Batching needs no timer: an idle student answers a single text at once, and the batches of a busy one grow by
themselves. Each student has one worker thread, because torch uses all cores for a batch and a tokenizer is not
thread-safe. Switching to that thread takes longer than predicting a few short texts, so these are answered on the event
loop if the thread is idle.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from distill.apps.serve.prometheus import GAUGE, Metrics
from distill.apps.serve.requests import Texts

# Texts per batch, which limits how long a small request waits behind large ones.
MOST_AT_ONCE = 8192
# Limits of a batch that blocks the event loop for a few milliseconds only.
SHORT_TEXTS, SHORT_CHARACTERS = 128, 16384
ANSWER_SECONDS = 60

T = TypeVar("T")


class Rows(Protocol):
    """An array or a list with a row for each text."""

    def __getitem__(self, key: slice, /) -> Any: ...


R = TypeVar("R", bound=Rows)
Waiting = tuple[Texts, asyncio.Future[R]]


class Worker:
    """Does one piece of work at a time.

    Args:
        is_quick: whether it predicts a few short texts faster than it switches to the thread.
    """

    def __init__(self, is_quick: bool) -> None:
        # The lock keeps event loop and thread from using the student at the same time. See `do`.
        self._thread, self._busy, self._is_quick = ThreadPoolExecutor(1), Lock(), is_quick

    async def do(self, work: Callable[[], T], is_short: bool = False) -> T:
        """Returns or raises what the work does. ``is_short`` marks work for a few short texts."""
        if is_short and self._is_quick and self._busy.acquire(blocking=False):
            try:
                return work()
            finally:
                self._busy.release()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._alone, work)

    def _alone(self, work: Callable[[], T]) -> T:
        with self._busy:
            return work()


class Batches(Generic[R]):
    """A queue of texts that wait for an answer.

    Args:
        answer: returns the student's output for texts or pairs, one row each.
        worker: does the work.
        metrics: what is counted.
    """

    def __init__(self, answer: Callable[[list[str], list[str] | None], R], worker: Worker, metrics: Metrics) -> None:
        self._answer: Callable[[list[str], list[str] | None], R] = answer
        self._worker, self._metrics = worker, metrics
        self._waiting: list[Waiting[R]] = []
        self._work: asyncio.Task[None] | None = None

    async def submit(self, texts: Texts) -> R:
        """Waits for the batch of these texts and returns their rows.

        Raises:
            TimeoutError: if their batch does not start in time.
            Exception: what the student raised for these texts.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((texts, future))
        if self._work is None:
            self._work = loop.create_task(self._answer_waiting())
        end = loop.call_later(ANSWER_SECONDS, _give_up, future)
        self._metrics.add(GAUGE, len(texts))
        try:
            return await future
        finally:
            end.cancel()
            self._metrics.add(GAUGE, -len(texts))

    async def _answer_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        # Lets requests that have already arrived join the first batch.
        await asyncio.sleep(0)
        while waiting := [one for one in self._waiting if not one[1].done()]:  # without requests that have timed out
            batch, self._waiting = _next(waiting)
            self._metrics.observe("te_batch_next_size", sum(len(texts) for texts, _ in batch))
            started = loop.time()
            batch_texts = [texts for texts, _ in batch]
            try:
                answers = await self._worker.do(partial(self._answers, batch_texts), is_short=_is_short(batch_texts))
            except RuntimeError as error:  # no thread could be started, but the next batch may succeed
                answers = [error] * len(batch)
            self._metrics.observe("te_request_inference_duration", loop.time() - started)
            for (_, future), answer in zip(batch, answers, strict=True):
                # Skips clients that have disconnected or timed out, because setting a result twice raises an error.
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        self._work, self._waiting = None, []

    def _answers(self, batch: Sequence[Texts]) -> Sequence[R | Exception]:
        """Returns an answer or an exception for each request, so that one invalid text does not fail the others."""
        try:
            first = [text for texts in batch for text in texts.first]
            second = [text for texts in batch for text in texts.second or ()]
            rows = self._answer(first, second if batch[0].second is not None else None)
            ends = accumulate(len(texts) for texts in batch)
            return [rows[end - len(texts) : end] for texts, end in zip(batch, ends, strict=True)]
        except Exception as error:  # noqa: BLE001  (returned to the request that caused it)
            return [error] if len(batch) == 1 else [self._answers([texts])[0] for texts in batch]


def _is_short(batch: Sequence[Texts]) -> bool:
    is_few = sum(len(texts) for texts in batch) <= SHORT_TEXTS
    return is_few and sum(texts.characters for texts in batch) <= SHORT_CHARACTERS


def _give_up(future: asyncio.Future[R]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _next(waiting: list[Waiting[R]]) -> tuple[list[Waiting[R]], list[Waiting[R]]]:
    """Returns the next batch and the remaining requests, in the order of their arrival."""
    size = 0
    for number, (texts, _) in enumerate(waiting):
        size += len(texts)
        # The first request always fits: a single request above the limit could otherwise never be answered.
        if number and size > MOST_AT_ONCE:
            return waiting[:number], waiting[number:]
    return waiting, []
