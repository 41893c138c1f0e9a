"""How a command reacts to signals: at SIGTERM it finishes the current piece of work if it can, and starts no other."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
GO_ON = "repeat the command to go on from what is finished"
GRACE_SECONDS = 30.0  # time between SIGTERM and SIGKILL in Kubernetes by default, and about that in other launchers
IMPORTS = "<frozen importlib._bootstrap>"  # file name in the stack frames of Python's import system


class Stopped(BaseException):
    """Raised after SIGTERM; not an `Exception`, so that no handler for failures catches it."""


class _State:
    """State of the whole process, because signal handlers belong to the process as well."""

    is_uninterrupted = False
    late: threading.Timer | None = None  # since the first SIGTERM


_state = _State()


@contextmanager
def handling_signals() -> Iterator[None]:
    """Within the block SIGTERM raises `Stopped`: at once, or when the item that `stop_between` has given is done.

    A second one raises it at once, and so does the end of the `GRACE_SECONDS`. Ctrl-C raises KeyboardInterrupt as ever.
    While a module is imported either ends the process, with exit code 143 or 130: compiled modules do not survive an
    error half-way, and would be imported again by whoever catches it.
    """
    if threading.current_thread() is not threading.main_thread():  # Python installs handlers in the main thread only
        yield
        return
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _stop)}
    # A shell starts background jobs with SIGINT ignored, and that has to stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if _state.late is not None:
            _state.late.cancel()
        _state.is_uninterrupted, _state.late = False, None


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C end the process at once: for what waits where Python handles no signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Work that is done to its end, or for the `GRACE_SECONDS`, before SIGTERM stops the command; see `is_stopping`."""
    _state.is_uninterrupted = True
    try:
        yield
    finally:
        _state.is_uninterrupted = False
    if is_stopping():
        raise Stopped


def is_stopping() -> bool:
    """Returns whether SIGTERM has arrived, so that no more work should be started."""
    return _state.late is not None


def stop_between(items: Iterable[T]) -> Iterator[T]:
    """The same items, each of which is worked on to its end before SIGTERM stops the command; see `uninterrupted`."""
    for item in items:
        with uninterrupted():
            yield item


def _stop(number: int, frame: FrameType | None) -> None:
    if is_stopping() or not _state.is_uninterrupted:
        _end_if_importing(number, frame)
        raise Stopped
    # After the grace period a second SIGTERM interrupts even uninterrupted work; partial files are temporary anyway.
    _state.late = threading.Timer(GRACE_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    # Without this the timer would keep a finished command alive until the grace period is over.
    _state.late.daemon = True
    _state.late.start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _end_if_importing(number, frame)
    raise KeyboardInterrupt


def _end_if_importing(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS:
            with suppress(OSError):  # stderr may be closed already
                os.write(2, f"{'stopped' if number == signal.SIGTERM else 'interrupted'}; {GO_ON}\n".encode())
            # Exit code 128 + signal number is the shells' convention. `_exit` runs no handlers in half-imported
            # modules.
            os._exit(128 + number)
        frame = frame.f_back
