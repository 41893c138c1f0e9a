"""`distill` in a process of its own, or in this one, and ways for it to die."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from distill.commands import app
from tests.helpers.forked import Forked


def invoke(*arguments: object) -> Result:
    """What a command does in this process, with what it printed and its exit code."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def piped(run: object, lines: list[str], *others: str) -> Result:
    """What ``distill predict --file -`` does with lines from standard input, in this process."""
    return CliRunner().invoke(app, ["predict", str(run), "--file", "-", *others], input="\n".join(lines))


def distill(
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    first: Callable[[], object] | None = None,
) -> Forked:
    """Starts ``distill`` in a process of its own, which may do something ``first``."""
    return Forked(partial(_distill, [*map(str, arguments)], first), folder, environment)


def distill_in_two_processes(*arguments: object) -> None:
    """Runs ``distill`` as two processes that share its work, as torchrun starts them; both must succeed."""
    for process in [distill(*arguments, environment=rank) for rank in ranks(2)]:
        _, error = process.communicate(timeout=180)
        assert process.returncode == 0, error


def ranks(count: int) -> list[dict[str, str]]:
    """The environments of so many processes that share a command's work, as torchrun makes them."""
    # Below 32,768: the kernel gives ports from there on to whoever asks before the first process listens, even to the
    # one that asks whether it does, which then talks to itself.
    ports = (int(port) for port in np.random.default_rng().permutation(np.arange(20_000, 32_000)))
    port = next(port for port in ports if not listens(port))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def listens(port: int) -> bool:
    """Whether a process of this machine listens on the port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def kill_when(process: Forked, is_time: Callable[[], bool]) -> None:
    """Kills a process outright as soon as ``is_time``, and makes sure that it had not ended before."""
    while process.poll() is None and not is_time():
        time.sleep(0.001)
    process.kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, error


def signal_in(function: str, number: int) -> None:
    """Sends this process a signal once its main thread is in a function of that name, and has been for a moment."""

    def send() -> None:
        main = threading.main_thread().ident
        assert main is not None
        while function not in _functions_of(main):
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def _functions_of(thread: int) -> set[str]:
    """The names of the functions that a thread is in."""
    frame, names = sys._current_frames().get(thread), set[str]()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def _distill(arguments: list[str], first: Callable[[], object] | None) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background of a shell
    # A sweep blocks it while it starts its workers. If that starts the server that forks, all its processes block it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if first is not None:
        first()
    app(arguments)
