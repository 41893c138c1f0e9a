"""Handles signals: after SIGTERM, a command finishes its current piece of work if possible, and starts no other.

Python runs its signal handlers between two bytecodes, so a long call into a library would delay them. `interrupting`
ends such a call. `end_with_launcher` ends a process whose launcher was killed.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TypeVar

from pipeline import console
from pipeline.environment import num_processes

T = TypeVar("T")
GO_ON = "Repeat the command to resume."
GRACE_SECONDS = 30.0  # time between SIGTERM and SIGKILL in Kubernetes by default, and about that in other launchers
PATIENCE_SECONDS = 1.0  # time for a library to return after an interrupt
REPEAT_SECONDS = 0.02  # time between two interrupts, because one before the library has begun is lost
LOOK_EVERY_SECONDS = 0.2  # time between two looks at the launcher
IMPORTS = "<frozen importlib._bootstrap>"  # file name in the stack frames of Python's import system


class Stopped(BaseException):
    """Raised after SIGTERM. It is not an `Exception`, so that no handler for failures catches it."""


class _State:
    """State of the whole process, because signal handlers belong to the process as well."""

    is_uninterrupted = False
    late: threading.Timer | None = None  # set at the first SIGTERM
    raised: type[BaseException] | None = None  # set by a handler after the last `interrupting` began


_state = _State()


@contextmanager
def handling_signals() -> Iterator[None]:
    """Within the block, SIGTERM raises `Stopped` at once, or after the current item of `stop_between`.

    A second SIGTERM raises it at once, and so does the end of the `GRACE_SECONDS`. Ctrl-C raises KeyboardInterrupt as
    usual. While a module is imported, both end the process with exit code 143 or 130, because compiled modules do not
    survive an interrupted import, and a handler could import them again. So they do in a `__del__`, whose exceptions
    Python ignores.
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
    """Within the block, SIGTERM and Ctrl-C end the process at once.

    For calls during which Python handles no signals.
    """
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
def interrupting(interrupt: Callable[[], object]) -> Iterator[None]:
    """Within the block, SIGTERM and Ctrl-C also end a long call into a library.

    A thread calls ``interrupt`` until the block is left. If that takes more than `PATIENCE_SECONDS`, a command of the
    shell ends at once with exit code 143 or 130. This also works if a library catches the exception of a handler.

    Args:
        interrupt: makes the library end the call. It runs in another thread.
    """
    if threading.current_thread() is not threading.main_thread():  # signals interrupt only the main thread
        yield
        return
    _state.raised = None
    receiver, sender = socket.socketpair()
    sender.setblocking(False)  # required by `signal.set_wakeup_fd`
    is_left = threading.Event()
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    watch = threading.Thread(target=_interrupt_on_signals, args=(receiver, interrupt, is_left, before), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        if _state.raised is not None and not isinstance(error, _state.raised):
            raise _state.raised from error
        raise
    finally:
        is_left.set()
        signal.set_wakeup_fd(before)
        sender.close()
        watch.join()
        receiver.close()


def _interrupt_on_signals(
    receiver: socket.socket, interrupt: Callable[[], object], is_left: threading.Event, others_fd: int
) -> None:
    """Reads the numbers of signals until the other end is closed, and interrupts if one of them ends the command."""
    is_first = not is_stopping()
    while numbers := receiver.recv(64):
        if others_fd >= 0:  # such as that of an event loop around the block
            os.write(others_fd, numbers)
        for number in numbers:
            if number == signal.SIGTERM and is_first and _state.is_uninterrupted:
                is_first = False  # the current work is finished
            elif number in (signal.SIGTERM, signal.SIGINT):
                _interrupt_until(is_left, interrupt, number)


def _interrupt_until(is_left: threading.Event, interrupt: Callable[[], object], number: int) -> None:
    last = time.monotonic() + PATIENCE_SECONDS
    while not is_left.wait(REPEAT_SECONDS):
        interrupt()
        if time.monotonic() > last and signal.getsignal(number) in (_stop, _interrupt):
            _end_process(number)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGTERM stops the command only after the work in the block, or after the `GRACE_SECONDS`. See `is_stopping`."""
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
    """Yields the items. SIGTERM stops the command only after the current item. See `uninterrupted`."""
    for item in items:
        with uninterrupted():
            yield item


def _stop(number: int, frame: FrameType | None) -> None:
    if is_stopping() or not _state.is_uninterrupted:
        _end_where_errors_are_lost(number, frame)
        _state.raised = Stopped
        raise Stopped
    # After the grace period, a second SIGTERM also interrupts uninterrupted work. Partial files are temporary anyway.
    _state.late = threading.Timer(GRACE_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    # Without this the timer would keep a finished command alive until the grace period is over.
    _state.late.daemon = True
    _state.late.start()


def _interrupt(number: int, frame: FrameType | None) -> None:
    _end_where_errors_are_lost(number, frame)
    _state.raised = KeyboardInterrupt
    raise KeyboardInterrupt


def _end_where_errors_are_lost(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS or frame.f_code.co_name == "__del__":
            _end_process(number)
        frame = frame.f_back


def _end_process(number: int) -> NoReturn:
    """Ends the process without cleaning up, as the signal would. Finished files stay on the disk."""
    with suppress(OSError):  # stderr may be closed already
        os.write(2, f"{'stopped' if number == signal.SIGTERM else 'interrupted'}. {GO_ON}\n".encode())
    # Exit code 128 + signal number is the shells' convention. `_exit` runs no handlers in half-imported modules.
    os._exit(128 + number)


def end_with_launcher() -> None:
    """Ends this process soon after ``accelerate launch`` or ``torchrun``, if one of them started it.

    A killed launcher cannot stop its processes, which would keep writing to the folder of the repeated command.
    """
    if num_processes() > 1:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(launcher: int) -> None:
    # The kernel gives an orphan a new parent, which works on every Unix. prctl(PR_SET_PDEATHSIG) exists on Linux only.
    while os.getppid() == launcher:
        time.sleep(LOOK_EVERY_SECONDS)
    console.error("the launcher of this process has ended, so it ends, too. Repeat the command: finished work is kept")
    os._exit(1)
