import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from distill.apps.serve import batches
from distill.apps.serve.batches import SHORT_CHARACTERS, SHORT_TEXTS, Batches, Worker
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.requests import Texts
from pipeline.arrays import Floats
from pipeline.errors import IntegrityError


class Lengths:
    """Answers with the lengths of texts, and waits before its first answer until it may go on."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, first: list[str], second: list[str] | None) -> Floats:
        self.asked.append(first)
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        if "poison" in first:
            raise IntegrityError("cannot read poison")
        return np.array([[len(a), len(b)] for a, b in zip(first, second or first, strict=True)], dtype=np.float32)


@pytest.fixture
def lengths() -> Lengths:
    return Lengths()


@pytest.fixture
def waiting(lengths: Lengths) -> Batches[Floats]:
    """Batches that wait for a thread, not for the event loop, which the test goes on in."""
    return Batches(lengths, Worker(is_quick=False), Metrics(1))


def texts(*first: str) -> Texts:
    return Texts(list(first), None)


async def while_busy(waiting: Batches[Floats], lengths: Lengths, *others: Coroutine[Any, Any, Any]) -> list[Any]:
    """Asks for one text, everything else while that is being answered; returns all answers or what was raised."""
    first = asyncio.create_task(waiting.submit(texts("alone")))
    await asyncio.to_thread(lengths.has_begun.wait, 60)
    tasks = [asyncio.create_task(other) for other in others]
    await asyncio.sleep(0)  # each of them gets into the queue
    lengths.may_go_on.set()
    return await asyncio.gather(first, *tasks, return_exceptions=True)


def test_what_comes_while_it_works_is_one_batch(waiting: Batches[Floats], lengths: Lengths) -> None:
    asked = [waiting.submit(texts("a", "bb")), waiting.submit(texts("ccc")), waiting.submit(texts("dddd"))]
    answers = asyncio.run(while_busy(waiting, lengths, *asked))
    assert lengths.asked == [["alone"], ["a", "bb", "ccc", "dddd"]]
    assert [answer[:, 0].tolist() for answer in answers] == [[5], [1, 2], [3], [4]]


def test_what_has_just_arrived_comes_along(lengths: Lengths) -> None:
    async def story() -> list[Floats]:
        idle = Batches(lengths, Worker(is_quick=True), Metrics(1))
        first = asyncio.create_task(idle.submit(texts("a")))
        await asyncio.sleep(0)  # it waits for its answer before there is another
        return [*await asyncio.gather(first, idle.submit(texts("bb")))]

    lengths.may_go_on.set()
    assert [answer[:, 0].tolist() for answer in asyncio.run(story())] == [[1], [2]]
    assert lengths.asked == [["a", "bb"]]


def test_pairs_stay_together(waiting: Batches[Floats], lengths: Lengths) -> None:
    lengths.may_go_on.set()
    answer = asyncio.run(waiting.submit(Texts(["a", "bb"], ["ccc", "dddd"])))
    assert answer.tolist() == [[1, 3], [2, 4]]


def test_a_text_that_cannot_be_read_spoils_no_other(waiting: Batches[Floats], lengths: Lengths) -> None:
    asked = [waiting.submit(texts("a")), waiting.submit(texts("poison")), waiting.submit(texts("bb"))]
    _, a, poison, b = asyncio.run(while_busy(waiting, lengths, *asked))
    assert (a[:, 0].tolist(), b[:, 0].tolist()) == ([1], [2])
    assert isinstance(poison, IntegrityError)


def test_after_a_failure_it_goes_on(waiting: Batches[Floats], lengths: Lengths) -> None:
    async def twice() -> Floats:
        with pytest.raises(IntegrityError):
            await waiting.submit(texts("poison"))
        return await waiting.submit(texts("abc"))

    lengths.may_go_on.set()
    assert asyncio.run(twice())[:, 0].tolist() == [3]


def test_who_has_gone_is_not_worked_for(waiting: Batches[Floats], lengths: Lengths) -> None:
    async def gives_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await waiting.submit(texts("given up"))

    async def story() -> list[Any]:
        first = asyncio.create_task(waiting.submit(texts("alone")))
        await asyncio.to_thread(lengths.has_begun.wait, 60)
        await gives_up()
        last = asyncio.create_task(waiting.submit(texts("last")))
        lengths.may_go_on.set()
        return [*await asyncio.gather(first, last)]

    assert [answer[:, 0].tolist() for answer in asyncio.run(story())] == [[5], [4]]
    assert lengths.asked == [["alone"], ["last"]]


def test_a_crowd_is_answered_in_parts(
    waiting: Batches[Floats], lengths: Lengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_AT_ONCE", 3)
    asked = [waiting.submit(texts("a", "b")), waiting.submit(texts("c", "d")), waiting.submit(texts("e"))]
    asyncio.run(while_busy(waiting, lengths, *asked, waiting.submit(texts("f", "g", "h", "i"))))
    assert lengths.asked == [["alone"], ["a", "b"], ["c", "d", "e"], ["f", "g", "h", "i"]]


def test_who_comes_after_a_thread_that_could_not_start_is_answered(
    waiting: Batches[Floats], lengths: Lengths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        lengths.may_go_on.set()
        with monkeypatch.context() as short_of_threads:
            short_of_threads.setattr(threading.Thread, "start", no_more)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await waiting.submit(texts("a"))
        assert (await waiting.submit(texts("bb"))).tolist() == [[2, 2]]

    monkeypatch.setattr(batches, "ANSWER_SECONDS", 5)
    asyncio.run(story())


def test_short_work_is_done_on_the_spot_unless_the_thread_is_busy() -> None:
    worker, has_begun, may_end = Worker(is_quick=True), threading.Event(), threading.Event()
    at_work: list[int] = []

    def long_work() -> int:
        at_work.append(1)
        has_begun.set()
        assert may_end.wait(60)
        at_work.pop()
        return threading.get_ident()

    def short_work() -> tuple[int, list[int]]:
        return threading.get_ident(), list(at_work)

    async def story() -> None:
        here = threading.get_ident()
        assert (await worker.do(short_work, is_short=True))[0] == here
        assert (await worker.do(short_work))[0] != here
        busy = asyncio.create_task(worker.do(long_work))
        await asyncio.to_thread(has_begun.wait, 60)
        waits = asyncio.create_task(worker.do(short_work, is_short=True))
        await asyncio.sleep(0)
        may_end.set()
        assert await waits == (await busy, [])  # after it, in the same thread

    asyncio.run(story())


def test_what_short_work_raises_leaves_the_worker_free() -> None:
    worker = Worker(is_quick=True)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(worker.do(lambda: 1 // 0, is_short=True))
    assert asyncio.run(worker.do(threading.get_ident, is_short=True)) == threading.get_ident()


@pytest.mark.parametrize(
    ("texts", "is_quick", "waits"),
    [
        (["a"] * SHORT_TEXTS, True, True),
        (["a"] * (SHORT_TEXTS + 1), True, False),
        (["a" * SHORT_CHARACTERS], True, True),
        (["a" * SHORT_CHARACTERS, "b"], True, False),
        (["a"], False, False),
    ],
)
def test_the_event_loop_waits_for_few_short_texts_of_a_quick_student_alone(
    texts: list[str], is_quick: bool, waits: bool
) -> None:
    threads: list[int] = []

    def answer(first: list[str], _: list[str] | None) -> Floats:
        threads.append(threading.get_ident())
        return np.zeros((len(first), 1), np.float32)

    answers = asyncio.run(Batches(answer, Worker(is_quick), Metrics(1)).submit(Texts(texts, None)))
    assert len(answers) == len(texts)
    assert (threads == [threading.get_ident()]) == waits
