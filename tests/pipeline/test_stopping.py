"""SIGTERM: what is in hand is finished, nothing more is begun, and nobody is waited for too long."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from pipeline import stopping
from pipeline.stopping import Stopped, stops_on_sigterm, whole


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_twice() -> None:
    terminate()
    terminate()


def terminate_and_sleep() -> None:
    terminate()
    time.sleep(60)


def each(items: list[int], work: Callable[[], None]) -> None:
    for _ in whole(items):
        work()


def work_through(items: list[int], at: dict[int, Callable[[], None]]) -> list[int]:
    """The items that came to their end before SIGTERM was heeded; all if it never was."""
    done: list[int] = []
    try:
        with stops_on_sigterm():
            for item in whole(items):
                at.get(item, lambda: None)()
                done.append(item)
    except Stopped:
        return done
    assert done == items
    return done


def test_the_item_in_hand_is_finished_and_no_other_is_begun() -> None:
    assert work_through([1, 2, 3], {}) == [1, 2, 3]
    assert work_through([1, 2, 3], {2: terminate}) == [1, 2]
    assert work_through([1, 2, 3], {3: terminate}) == [1, 2, 3]


def test_the_last_item_too_ends_in_stopped() -> None:
    with pytest.raises(Stopped), stops_on_sigterm():
        each([1], terminate)


def test_between_items_and_without_any_it_is_heeded_at_once() -> None:
    with pytest.raises(Stopped), stops_on_sigterm():
        terminate()

    def items() -> list[int]:
        terminate()
        return [1]

    with pytest.raises(Stopped), stops_on_sigterm():
        list(whole(item for _ in "a" for item in items()))


def test_a_second_signal_and_the_end_of_the_grace_end_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work_through([1, 2], {1: terminate_twice}) == []
    monkeypatch.setattr(stopping, "GRACE_SECONDS", 0.05)
    assert work_through([1, 2], {1: terminate_and_sleep}) == []


def test_the_handler_of_before_comes_back_and_nothing_is_left_to_fire() -> None:
    before = signal.getsignal(signal.SIGTERM)
    threads = threading.active_count()
    work_through([1], {1: terminate})
    assert signal.getsignal(signal.SIGTERM) is before
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(5)
    assert threading.active_count() == threads


def test_in_another_thread_it_only_passes() -> None:
    passed: list[int] = []

    def run() -> None:
        with stops_on_sigterm():
            passed.extend(whole([1, 2]))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert passed == [1, 2]
