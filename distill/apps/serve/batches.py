"""Batches without a clock: whatever has come while the student worked is its next batch.

Idle, it answers a single text at once; busy, its batches grow by themselves. One thread works for a student, because
torch uses all cores for a batch and a tokenizer is for one thread. Going to a thread and back takes longer than a few
short texts do; these are answered where they have arrived, on the event loop, if the thread has nothing to do.

Shapes: N texts.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Generic, TypeVar

from distill.apps.serve.metrics import GAUGE, Metrics
from distill.apps.serve.requests import Texts
from pipeline.arrays import Floats, Ints

MOST_AT_ONCE = 8192  # texts, so that nobody waits for all of a crowd
SHORT_TEXTS, SHORT_CHARACTERS = 128, 16384  # of a batch that the event loop can wait for, some milliseconds at most
ANSWER_SECONDS = 60

Ranking = list[str]  # a JSON object for each label with its score, the highest first
T = TypeVar("T")
R = TypeVar("R", Floats, Ints, list[Ranking])  # a row for each text
Waiting = tuple[Texts, asyncio.Future[R]]


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


class Batches(Generic[R]):
    """Texts that wait for an answer.

    Args:
        answer: what the student makes of many texts, or of pairs, a row each.
        worker: does it.
        metrics: what is counted.
    """

    def __init__(self, answer: Callable[[list[str], list[str] | None], R], worker: Worker, metrics: Metrics) -> None:
        self._answer: Callable[[list[str], list[str] | None], R] = answer
        self._worker, self._metrics = worker, metrics
        self._waiting: list[Waiting[R]] = []
        self._work: asyncio.Task[None] | None = None

    async def ask(self, texts: Texts) -> R:
        """The rows of these texts, once they have had their turn.

        Raises:
            TimeoutError: if their turn does not come.
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
        await asyncio.sleep(0)  # what has arrived meanwhile comes along
        while waiting := [one for one in self._waiting if not one[1].done()]:  # some may have given up
            batch, self._waiting = _next(waiting)
            self._metrics.observe("te_batch_next_size", sum(len(texts) for texts, _ in batch))
            started = loop.time()
            asked = [texts for texts, _ in batch]
            try:
                answers = await self._worker.do(partial(self._answers, asked), is_short=_is_short(asked))
            except RuntimeError as error:  # no thread could be started: the next batch may have more luck
                answers = [error] * len(batch)
            self._metrics.observe("te_request_inference_duration", loop.time() - started)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        self._work, self._waiting = None, []

    def _answers(self, batch: Sequence[Texts]) -> Sequence[R | Exception]:
        """An answer for each request, or what was raised: a text that cannot be read must not spoil the others."""
        try:
            first = [text for texts in batch for text in texts.first]
            second = [text for texts in batch for text in texts.second or ()]
            rows = self._answer(first, second if batch[0].second is not None else None)
            ends = accumulate(len(texts) for texts in batch)
            return [rows[end - len(texts) : end] for texts, end in zip(batch, ends, strict=True)]
        except Exception as error:  # noqa: BLE001  (whatever it is, it is told to the one whose text it was)
            return [error] if len(batch) == 1 else [self._answers([texts])[0] for texts in batch]


def _is_short(batch: Sequence[Texts]) -> bool:
    is_few = sum(len(texts) for texts in batch) <= SHORT_TEXTS
    return is_few and sum(texts.characters for texts in batch) <= SHORT_CHARACTERS


def _give_up(future: asyncio.Future[R]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _next(waiting: list[Waiting[R]]) -> tuple[list[Waiting[R]], list[Waiting[R]]]:
    """The next batch, and what is left, in the order in which they came."""
    size = 0
    for number, (texts, _) in enumerate(waiting):
        size += len(texts)
        if number and size > MOST_AT_ONCE:
            return waiting[:number], waiting[number:]
    return waiting, []
