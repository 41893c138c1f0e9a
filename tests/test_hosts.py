"""``make hosts`` where a machine does not have what it needs, and the network that it relies on."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.hosts.network import Network, hardware_address


@pytest.mark.parametrize(
    ("present", "missing"),
    [((), "ip, nsenter or unshare is missing"), (("ip", "nsenter", "unshare"), "sshfs is missing")],
)
def test_what_is_missing_is_named(tmp_path: Path, present: tuple[str, ...], missing: str) -> None:
    for name in present:
        (tmp_path / name).symlink_to("/bin/true")
    done = subprocess.run(
        ["/bin/sh", "tests/hosts.sh", "python"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert missing in done.stderr


def test_frames_reach_hosts_that_are_plugged_in() -> None:
    network, received = Network(), {}
    for number in (1, 2, 3):
        received[number], network._devices[number] = os.pipe()
    to_two, to_all = (hardware_address(2) + b"one", bytes([0xFF] * 6) + b"all")
    for frame in (to_two, to_all):
        network._take(1, frame)
    network.cut = {3}
    network._take(2, to_all)
    while network.sent < 4:
        time.sleep(0.01)
    assert os.read(received[1], 100) == to_all
    assert os.read(received[2], 100) == to_two + to_all
    assert os.read(received[3], 100) == to_all
    assert network.lost == 1
