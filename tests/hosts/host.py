"""Hosts that share nothing but a network."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.hosts.network import Network

SPACES = ("--net", "--mount", "--uts", "--pid")
# Each host has its own /tmp for data, and its own /dev/shm, through which the workers of one host share memory.
START = 'hostname "$0" && mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && echo up && exec sleep infinity'
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108 - the host's own
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # otherwise workers wait for everything else on this machine
}


class Host:
    """A machine: its own network, name, processes, /tmp and /dev/shm. Software is read from this machine.

    Args:
        network: is plugged in.
        number: from 1.
    """

    def __init__(self, network: Network, number: int) -> None:
        self.network, self.number, self.name = network, number, f"host-{number}"
        self.is_dead = False
        command = ["unshare", *SPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", START, self.name]
        self._init = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "up\n":
            raise RuntimeError(f"{self.name} does not start")
        self.pid = int(Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text())
        self.address = network.connect(number, self.pid)

    def start(self, *command: object, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a command on this host. Its output can be read."""
        enter = ["nsenter", "--target", str(self.pid), *SPACES, f"--wd={Path.cwd()}"]
        return subprocess.Popen(
            [*enter, *map(str, command)],
            env=os.environ | ENVIRONMENT | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: object, environment: Mapping[str, str] | None = None, seconds: float = 120) -> str:
        """Runs a command that must succeed on this host. Returns its output."""
        process = self.start(*command, environment=environment)
        printed, _ = process.communicate(timeout=seconds)
        if process.returncode:
            raise RuntimeError(f"{self.name}: {command[0]} ended with {process.returncode}: {printed[-2000:]}")
        return printed

    def path(self, path: Path) -> Path:
        """Returns the path by which this process reaches a file or folder of the host."""
        return Path(f"/proc/{self.pid}/root{path}")

    def unplug(self) -> None:
        """Cuts the host off. Nobody is told."""
        self.network.cut.add(self.number)

    def plug_in(self) -> None:
        """Ends `unplug`."""
        self.network.cut.discard(self.number)

    def die(self) -> None:
        """Cuts the host off and kills all its processes, as a lost power supply does: no connection is closed."""
        self.unplug()
        self.is_dead = True
        self._init.kill()  # With the first process of a namespace, the kernel kills all others.
        self._init.wait()
