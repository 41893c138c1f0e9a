"""Checks that workers write to the driver's folder, and that the driver sees the files they have written."""

import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import ConfigError, PassingError
from pipeline.files import TEMPORARY_SUFFIX, write_text

# NFS clients may cache for a minute that a file does not exist.
SEEN_WITHIN_S = 90.0


@contextmanager
def marked(folder: Path) -> Iterator[Path]:
    """Creates a file in ``folder`` for the duration of the block, by which other machines identify the folder.

    Raises:
        DataError: if the folder cannot be written.
    """
    # The temporary suffix lets the next command remove a mark that a killed driver left.
    mark = folder.absolute() / f".driver-{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
    write_text(mark, "")
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def require_marked(mark: Path) -> None:
    """Raises ConfigError unless the driver's mark is seen by this process."""
    if not mark.exists():
        unseen = f"{socket.gethostname()} does not see the driver's {mark.parent}"
        advice = "Mount the store there under the same path, or remove the flag, so that the driver writes."
        raise ConfigError(f"--ray-write workers: {unseen}. {advice}")


def require_seen(folder: Path, sizes: Mapping[str, int]) -> None:
    """Waits until this process sees the files that workers have written.

    Args:
        folder: the folder of the files.
        sizes: bytes of each, by its path in the folder.

    Raises:
        PassingError: if one is missing or has another size after `SEEN_WITHIN_S`.
    """
    until = time.monotonic() + SEEN_WITHIN_S
    while unseen := [path for path, size in sizes.items() if not _has(folder / path, size)]:
        if time.monotonic() > until:
            raise PassingError(
                f"{folder / unseen[0]}: a worker has written {sizes[unseen[0]]:,} bytes, which are not seen here. "
                "Repeat the command once all machines see the same store."
            )
        time.sleep(1)


def _has(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size
