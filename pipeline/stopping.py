"""What SIGTERM does to a command: the piece of work in hand is finished if that is soon done, and nothing is begun."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
GRACE_SECONDS = 30.0  # what launchers usually leave before they kill; Kubernetes' default


class Stopped(BaseException):
    """SIGTERM has come; no `Exception`, so that nothing takes it for a failure."""


class _State:
    """Of this process: signals are the process's, too."""

    is_in_hand = False
    late: threading.Timer | None = None  # since the first SIGTERM


_state = _State()


@contextmanager
def stops_on_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises `Stopped`: at once, or when the item that `whole` has given is done.

    A second one raises it at once, and so does the end of the `GRACE_SECONDS`.
    """
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be asked for
        yield
        return
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if _state.late is not None:
            _state.late.cancel()
        _state.is_in_hand, _state.late = False, None


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C end the process at once: for what waits where Python heeds no signal."""
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
def in_hand() -> Iterator[None]:
    """Work that is done to its end, or for the `GRACE_SECONDS`, before SIGTERM is heeded; it may look `is_asked`."""
    _state.is_in_hand = True
    try:
        yield
    finally:
        _state.is_in_hand = False
    if is_asked():
        raise Stopped


def is_asked() -> bool:
    """Whether SIGTERM has come, so that nothing more should be begun."""
    return _state.late is not None


def whole(items: Iterable[T]) -> Iterator[T]:
    """The same items, each of which is worked on to its end before SIGTERM is heeded; see `in_hand`."""
    for item in items:
        with in_hand():
            yield item


def _stop(*_: Any) -> None:
    if is_asked() or not _state.is_in_hand:
        raise Stopped
    _state.late = threading.Timer(GRACE_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    _state.late.daemon = True
    _state.late.start()
