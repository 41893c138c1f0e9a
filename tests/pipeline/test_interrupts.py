"""SIGTERM: what is in hand is finished, nothing more is begun, and nobody is waited for too long."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline import interrupts
from pipeline.interrupts import Stopped, handling_signals, interrupting, stop_between


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def terminate_twice() -> None:
    terminate()
    terminate()


def terminate_and_sleep() -> None:
    terminate()
    time.sleep(60)


def each(items: list[int], work: Callable[[], None]) -> None:
    for _ in stop_between(items):
        work()


def work_through(items: list[int], at: dict[int, Callable[[], None]]) -> list[int]:
    """The items that came to their end before SIGTERM was heeded; all if it never was."""
    done: list[int] = []
    try:
        with handling_signals():
            for item in stop_between(items):
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
    with pytest.raises(Stopped), handling_signals():
        each([1], terminate)


def test_between_items_and_without_any_it_is_heeded_at_once() -> None:
    with pytest.raises(Stopped), handling_signals():
        terminate()

    def items() -> list[int]:
        terminate()
        return [1]

    with pytest.raises(Stopped), handling_signals():
        list(stop_between(item for _ in "a" for item in items()))


def test_a_second_signal_and_the_end_of_the_grace_end_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work_through([1, 2], {1: terminate_twice}) == []
    monkeypatch.setattr(interrupts, "GRACE_SECONDS", 0.05)
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
        with handling_signals():
            passed.extend(stop_between([1, 2]))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert passed == [1, 2]


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, Stopped), (signal.SIGINT, KeyboardInterrupt)])
def test_a_library_is_interrupted_and_does_not_hide_the_signal(number: int, kind: type[BaseException]) -> None:
    interrupted, threads = threading.Event(), threading.active_count()

    def call_the_library() -> None:
        with suppress(kind):  # as it does in C++
            signal.raise_signal(number)
        assert interrupted.wait(20)
        raise RuntimeError("the query was interrupted")

    with pytest.raises(kind) as caught, handling_signals(), interrupting(interrupted.set):
        call_the_library()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert threading.active_count() == threads


def test_a_library_is_left_alone_while_the_item_in_hand_is_finished() -> None:
    interrupted = threading.Event()

    def work() -> None:
        with interrupting(interrupted.set):
            terminate()
            assert not interrupted.wait(0.2)

    with pytest.raises(Stopped), handling_signals():
        each([1, 2], work)


def test_an_error_of_a_library_without_a_signal_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="its own"), handling_signals(), interrupting(lambda: None):
        raise RuntimeError("its own")


def test_a_signal_for_a_block_does_not_change_the_errors_of_the_next() -> None:
    with handling_signals():
        with pytest.raises(KeyboardInterrupt), interrupting(lambda: None):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(RuntimeError), interrupting(lambda: None):
            raise RuntimeError


def test_bytes_of_signals_still_reach_the_event_loop_around_the_block() -> None:
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    before = signal.set_wakeup_fd(sender.fileno())
    try:
        with pytest.raises(KeyboardInterrupt), interrupting(lambda: None):
            signal.raise_signal(signal.SIGINT)
        receiver.settimeout(5)
        assert receiver.recv(1) == bytes([signal.SIGINT])
        assert signal.set_wakeup_fd(before) == sender.fileno()
    finally:
        signal.set_wakeup_fd(before)
        receiver.close()
        sender.close()


SIGNALLED = """
import os
os.kill(os.getpid(), {number})
"""
HEEDING = """
import signal
from pipeline.interrupts import handling_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background may not have
with handling_signals():
    try:
        import signalled
        {then}
    except BaseException as error:  # as a library does that tries another import then
        print(type(error).__name__)
"""


@pytest.mark.parametrize(("number", "code", "name"), [(15, 143, "Stopped"), (2, 130, "KeyboardInterrupt")])
def test_while_a_module_is_imported_the_process_ends(number: int, code: int, name: str, tmp_path: Path) -> None:
    def ended(stderr: int = subprocess.PIPE) -> tuple[int, str, str | None]:
        path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(interrupts.__file__).parents[1]}"}
        program = [sys.executable, "-c", HEEDING.format(then=f"signal.raise_signal({number})")]
        process = subprocess.run(program, env=os.environ | path, stdout=subprocess.PIPE, stderr=stderr, text=True)
        return process.returncode, process.stdout, process.stderr

    (tmp_path / "signalled.py").write_text(SIGNALLED.format(number=number))
    read, write = os.pipe()
    os.close(read)  # nobody listens
    assert ended(write) == (code, "", None)
    os.close(write)
    word = "stopped" if number == 15 else "interrupted"
    ended_code, out, err = ended()
    assert (ended_code, out, (err or "").split(".")[0]) == (code, "", word)
    (tmp_path / "signalled.py").write_text("")
    assert ended() == (0, f"{name}\n", "")


FORGOTTEN = """
import signal
from pipeline.interrupts import handling_signals

class Forgotten:
    def __del__(self):
        signal.raise_signal({number})

with handling_signals():
    Forgotten()
    print("went on")
"""


@pytest.mark.parametrize(("number", "code"), [(15, 143), (2, 130)])
def test_a_signal_in_a_finalizer_ends_the_process(number: int, code: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(interrupts.__file__).parents[1])}
    program = [sys.executable, "-c", FORGOTTEN.format(number=number)]
    process = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (code, "")
    assert len(process.stderr.splitlines()) == 1
