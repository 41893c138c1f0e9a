"""Ends a command together with the process that started it, even if that process is killed.

A killed parent cannot stop its processes, which would keep writing to the folder of the repeated command.
Processes of ``accelerate launch`` and ``torchrun`` watch their launcher. ``python -m distill.commands.parent COMMAND``
runs a command that ends when its standard input is closed.
"""

import os
import sys
import threading
import time

from pipeline import console
from pipeline.environment import num_processes

LOOK_EVERY_S = 0.2


def end_with_launcher() -> None:
    """Starts to watch the launcher, if there is one."""
    if num_processes() > 1:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(launcher: int) -> None:
    # The kernel gives an orphan a new parent, which works on every Unix. prctl(PR_SET_PDEATHSIG) exists on Linux only.
    while os.getppid() == launcher:
        time.sleep(LOOK_EVERY_S)
    console.error("the launcher of this process has ended, so it ends, too. Repeat the command: finished work is kept")
    os._exit(1)


def _end_with_stdin() -> None:
    """Ends this process once the other end of its standard input is closed."""
    # The kernel closes the pipe when the parent dies, however it dies.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    from distill.commands import app

    app()
