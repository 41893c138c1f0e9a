"""The library that `shim.c` becomes: what shall happen to this process at one of its file operations."""

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """What happens at a file operation.

    Attributes:
        signal: is sent to the process; 0 for none.
        repeats: at so many operations after it, too.
        error: its ``errno``, and that of all later ones; 0 for none.
        resource: a limit of ``resource.setrlimit`` that is set then; -1 for none.
        limit: its value; of memory, how much more there may be.
        clock_step_s: how far the clock jumps.
    """

    signal: int = 0
    repeats: int = 0
    error: int = 0
    resource: int = -1
    limit: int = 0
    clock_step_s: int = 0


UNDISTURBED = Fault()


def preloaded(folder: Path) -> dict[str, str]:
    """The environment of a process in which `arm` works; the library is compiled into a folder."""
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return os.environ | {"LD_PRELOAD": str(library)}


def arm(folder: Path, at: int, fault: Fault, log: int = -1) -> None:
    """From now on this process counts what it does to files below a folder, and has its fault at one of them.

    Args:
        folder: the folder.
        at: number of the operation, from 1; 0 for none.
        fault: what happens then.
        log: a file descriptor that every operation's name is written to.
    """
    values = (at, fault.signal, fault.repeats, fault.error, fault.resource, fault.limit, fault.clock_step_s, log)
    ctypes.CDLL(None).torture_arm(str(folder).encode(), *map(ctypes.c_long, values))
