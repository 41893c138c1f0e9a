"""A process ends with its launcher, also if that is killed outright."""

import os
import select
import signal
import subprocess
import sys

# starts a process as a launcher does, tells its number, and waits
LAUNCHER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(worker.pid, flush=True)
worker.wait()
"""
WORKER = """
import sys, time
from pipeline.interrupts import end_with_launcher
end_with_launcher()
sys.stderr.write("watches\\n")
time.sleep(600)
"""


def test_an_orphan_ends_and_says_so() -> None:
    environment = os.environ | {"WORLD_SIZE": "2"}
    command = [sys.executable, "-c", LAUNCHER, WORKER]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        worker = os.pidfd_open(int(launcher.stdout.readline()))
        assert launcher.stderr.readline() == "watches\n"
        launcher.send_signal(signal.SIGKILL)
        assert select.select([worker], [], [], 60)[0], "the orphan goes on"
        assert "launcher" in launcher.stderr.read()
    os.close(worker)
