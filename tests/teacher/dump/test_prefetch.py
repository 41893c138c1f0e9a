"""Work beside the main thread. Events, not clocks, decide what happens at the same time."""

import threading
from collections.abc import Iterator

import pytest

from teacher.dump.shard_jobs import prefetched, start, write_behind

PATIENCE_S = 60  # after which a test that waits in vain fails


def test_a_job_runs_beside_the_caller_and_gives_its_result() -> None:
    go = threading.Event()
    result = start(lambda: go.wait(PATIENCE_S) and threading.current_thread().daemon)
    go.set()  # would come too late if the job had to end first
    assert result() is True


@pytest.mark.parametrize("error", [ValueError("a row"), KeyboardInterrupt()])
def test_the_error_of_a_job_comes_to_who_waits(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        start(fail)()
    assert caught.value is error


def test_one_item_is_made_ahead_and_no_more() -> None:
    made = [threading.Event() for _ in range(4)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    coming = prefetched(items())
    for number in range(3):
        assert next(coming) == number
        assert made[number + 1].wait(PATIENCE_S)
        assert not any(event.is_set() for event in made[number + 2 :])
    assert list(coming) == [3]


def test_none_and_nothing_are_items_and_no_items() -> None:
    assert list(prefetched(iter([None, 0, None]))) == [None, 0, None]
    assert list(prefetched(iter([]))) == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    coming = prefetched(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="the second"):
        next(coming)


def test_work_is_done_in_order_while_the_next_item_is_made() -> None:
    begun, done = threading.Event(), list[int]()

    def items() -> Iterator[int]:
        yield 1
        assert begun.wait(PATIENCE_S)  # work on 1 has begun before 2 is there
        yield 2
        yield 3

    def work(item: int) -> None:
        begun.set()
        done.append(item)

    write_behind(items(), work)
    assert done == [1, 2, 3]


def test_work_that_fails_stops_the_items() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number

    def work(item: int) -> None:
        raise OSError(f"disk full at {item}")

    with pytest.raises(OSError, match="disk full at 0"):
        write_behind(items(), work)
    assert made == [0, 1]


def test_work_begun_is_finished_if_the_next_item_fails() -> None:
    failed, done = threading.Event(), list[int]()

    def items() -> Iterator[int]:
        yield 1
        failed.set()
        raise ValueError("the second")

    def work(item: int) -> None:
        assert failed.wait(PATIENCE_S)
        done.append(item)

    with pytest.raises(ValueError, match="the second"):
        write_behind(items(), work)
    assert done == [1]
