"""A network of hosts that can be slow, lose packets, and be cut."""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LONGEST_FRAME = 2048
BROADCAST = 0x01  # the bit of a hardware address that is set if a frame is for all


class Network:
    """A switch in a thread: it passes the frames of each host on to the others.

    Kernels often lack netem, the usual way to disturb packets, but all of them have tap devices.

    Attributes:
        delay_s: the least and the longest time that a frame takes.
        loss: the share of frames that never arrive.
        cut: the numbers of the hosts whose cable is unplugged.
        sent: the number of frames that were passed on.
        lost: the number of frames that were not.
    """

    def __init__(self) -> None:
        self.delay_s = (0.0, 0.0)
        self.loss = 0.0
        self.cut: set[int] = set()
        self.sent = self.lost = 0
        self._devices: dict[int, int] = {}  # file descriptors by the number of the host
        self._chance = random.Random(0)  # noqa: S311 - of packets, not of secrets
        self._waiting: list[tuple[float, int, int, bytes]] = []  # frames with their time, order, and host
        self._order = count()
        threading.Thread(target=self._pass_on, daemon=True).start()

    def connect(self, number: int, process: int) -> str:
        """Plugs a host in. Returns its address.

        Args:
            number: of the host, from 1.
            process: any process of the host.
        """
        name, address = f"tap{number}", f"10.77.0.{number}"
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        ip("link", "set", name, "address", hardware_address(number).hex(":"), "netns", str(process))
        for command in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{address}/24", "dev", name),
            ("link", "set", name, "up"),
        ):
            subprocess.run(["nsenter", "--net", "--target", str(process), "ip", *command], check=True)
        self._devices[number] = device
        return address

    @contextmanager
    def disturbed(self, is_slow: bool) -> Iterator[None]:
        """Delays each frame by 15 to 25 ms and loses every hundredth, if ``is_slow``, until the block ends."""
        if is_slow:
            self.delay_s, self.loss = (0.015, 0.025), 0.01
        yield
        self.delay_s, self.loss = (0.0, 0.0), 0.0

    def has_sent(self, frames: int) -> bool:
        """Whether so many frames were passed on."""
        return self.sent >= frames

    def _pass_on(self) -> None:
        while True:
            until = self._waiting[0][0] - time.monotonic() if self._waiting else 0.1
            readable, _, _ = select.select(list(self._devices.values()), [], [], min(max(until, 0), 0.1))
            for number, device in list(self._devices.items()):
                if device in readable:
                    self._read(number, device)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                _, _, number, frame = heapq.heappop(self._waiting)
                self._deliver(number, frame)

    def _read(self, number: int, device: int) -> None:
        try:
            frame = os.read(device, LONGEST_FRAME)
        except OSError:  # The kernel removes the device of a host that has died.
            del self._devices[number]
        else:
            self._take(number, frame)

    def _take(self, source: int, frame: bytes) -> None:
        """Gives a frame its time of arrival at each host that it is for."""
        everybody = frame[0] & BROADCAST
        for number in self._devices:
            if number == source or not (everybody or frame.startswith(hardware_address(number))):
                continue
            if {source, number} & self.cut or self._chance.random() < self.loss:
                self.lost += 1
                continue
            arrives = time.monotonic() + self._chance.uniform(*self.delay_s)
            heapq.heappush(self._waiting, (arrives, next(self._order), number, frame))

    def _deliver(self, number: int, frame: bytes) -> None:
        try:
            os.write(self._devices[number], frame)
            self.sent += 1
        except (KeyError, OSError):  # its queue is full, or the host is gone
            self.lost += 1


def hardware_address(number: int) -> bytes:
    """Returns the address that the network card of a host has."""
    return bytes([2, 0, 0, 0, 0, number])


def ip(*arguments: str) -> None:
    """Runs ``ip``."""
    subprocess.run(["ip", *arguments], check=True)
