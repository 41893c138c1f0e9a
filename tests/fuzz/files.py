"""Where fuzzed bytes become files: in memory, if there is such a place."""

import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108
FOLDER = Path(tempfile.mkdtemp(prefix="distill-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
FIXTURES = Path(__file__).parents[1] / "fixtures" / "formats" / "v1"


def written(name: str, data: bytes) -> Path:
    """A file with these bytes."""
    path = FOLDER / name
    path.write_bytes(data)
    return path


def of_a_kind(data: bytes, kinds: tuple[str, ...]) -> tuple[str, bytes]:
    """One of several kinds, which the first byte chooses, and the bytes after it."""
    return kinds[(data[0] if data else 0) % len(kinds)], data[1:]


def seeds(kinds: tuple[str, ...], examples: dict[str, list[bytes]]) -> list[bytes]:
    """Examples of kinds as `of_a_kind` takes them apart."""
    return [bytes([kinds.index(kind)]) + data for kind, of_it in examples.items() for data in of_it]
