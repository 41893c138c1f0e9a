import asyncio
import threading

import numpy as np
import pytest

from distill.apps.serve.batches import SHORT_CHARACTERS, SHORT_TEXTS, Batches
from distill.apps.serve.metrics import Metrics
from distill.apps.serve.questions import Texts
from distill.apps.serve.worker import Worker
from pipeline.arrays import Floats


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

    answers = asyncio.run(Batches(answer, Worker(is_quick), Metrics(1)).ask(Texts(texts, None)))
    assert len(answers) == len(texts)
    assert (threads == [threading.get_ident()]) == waits
