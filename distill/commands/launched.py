"""A process of ``accelerate launch`` or ``torchrun`` ends with its launcher, also if that is killed outright.

A launcher that is killed cannot stop its processes: without this they would write on beside the repeated command. What
both write is the same, and whole or absent; but one of them is enough.
"""

import os
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
    while os.getppid() == launcher:
        time.sleep(LOOK_EVERY_S)
    console.error("the launcher of this process is gone, so it ends, too; repeat the command: what is finished is kept")
    os._exit(1)
