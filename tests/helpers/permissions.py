"""Folders that this process may only read, also where the tests are run by root."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CAPABILITIES_V3, DAC_OVERRIDE = 0x20080522, 1 << 1  # of linux/capability.h


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class Sets(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Takes the permission to write from a folder and all below it, and gives it back."""
    modes = {path: path.stat().st_mode for path in [folder, *folder.rglob("*")]}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        with _without_override():
            with pytest.raises(PermissionError):
                (folder / "x").touch()
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@contextmanager
def _without_override() -> Iterator[None]:
    """Lets permissions hold for root, too: in this thread, and in those that it starts."""
    if os.geteuid() != 0:
        yield
        return
    libc, header, sets = ctypes.CDLL(None, use_errno=True), Header(CAPABILITIES_V3, 0), (Sets * 2)()
    assert libc.capget(ctypes.byref(header), sets) == 0, os.strerror(ctypes.get_errno())
    before = sets[0].effective
    sets[0].effective &= ~DAC_OVERRIDE
    assert libc.capset(ctypes.byref(header), sets) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        sets[0].effective = before
        assert libc.capset(ctypes.byref(header), sets) == 0, os.strerror(ctypes.get_errno())
