"""The bytes of files of rows: unpacked where they are compressed, refused where they are something else."""

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.files import refuse_lfs_pointer

CODECS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: io.BufferedReader(pa.input_stream(path, compression="zstd")),
}
UTF16, UTF32 = (b"\xff\xfe", b"\xfe\xff"), (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")
MAGIC = {  # what begins files that people give by mistake, and what they are
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"ARROW1": "an Arrow file; let its name end in .arrow",
    b"PK\x03\x04": "a zip archive, as .xlsx is, too; unpack it, or save the sheet as CSV",
    b"\x1f\x8b": "compressed by gzip; let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; let its name end in .zst",
    b"BZh": "compressed by bzip2; let its name end in .bz2",
    b"\xfd7zXZ": "compressed by xz; let its name end in .xz",
    b"SQLite format 3": "a SQLite data base; export the table as CSV",
    b"\x80\x04": "a pickle, which can run code; save the rows as Parquet or CSV",
    b"<!DOCTYPE": "a web page, perhaps of a login; download the file itself",
    b"<html": "a web page, perhaps of a login; download the file itself",
}


def ending(path: Path) -> str:
    """The ending that says what a file holds, in small letters: ``.csv`` of ``Train.CSV.gz``."""
    stem = path.with_suffix("") if codec(path) else path
    return stem.suffix.lower()


def codec(path: Path) -> str | None:
    """The ending that says how a file is compressed; None for one that is not."""
    last = path.suffix.lower()
    return last if last in CODECS else None


def stem(path: Path) -> str:
    """A file's name without the endings that say what it holds."""
    return (path.with_suffix("") if codec(path) else path).stem


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file to be read from its beginning, unpacked if it is compressed."""
    compressed = codec(path)
    return path.open("rb") if compressed is None else cast("BinaryIO", CODECS[compressed](path))


def refuse_foreign(path: Path, is_text: bool) -> None:
    """Raises DataError for a file that is recognisably something else: a pointer of git-lfs, UTF-16, an archive.

    Args:
        path: the file.
        is_text: whether text is expected, where any of `MAGIC` is wrong.
    """
    refuse_lfs_pointer(path)
    if not is_text:
        return
    with open_bytes(path) as stream:
        first = stream.read(64)
    found = next((what for magic, what in MAGIC.items() if first.startswith(magic)), None)
    if found is not None:
        raise DataError(f"{path}: is {found}")
    if first.startswith(UTF16 + UTF32) or (len(first) > 3 and b"\0" in first[:4]):
        raise DataError(f"{path}: is UTF-16 or UTF-32, not UTF-8; save the file as UTF-8")


def unclosed_quote(path: Path) -> int | None:
    """The line, from 1, of the quote within which a CSV file ends; None if it ends outside quotes.

    Arrow takes what follows such a quote as one text. The file is looked at twice only if its number of quotes is odd:
    in a whole file those around texts are even, and those within them are doubled.
    """
    with open_bytes(path) as stream:
        count = sum(block.count(b'"') for block in iter(lambda: stream.read(2**20), b""))
    if count % 2 == 0:
        return None
    is_inside, was_closed, may_open, opened_at = False, False, True, 0
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            first, *others = line.split(b'"')
            may_open, was_closed = (may_open and not first) or _ends_field(first), was_closed and not first
            for part in others:  # before each of them stands a quote
                if is_inside:
                    is_inside, was_closed = False, True
                elif was_closed:  # a doubled quote: the text goes on
                    is_inside, was_closed = True, False
                elif may_open:  # at the beginning of a field alone; elsewhere it is a character like any other
                    is_inside, opened_at = True, number
                may_open, was_closed = _ends_field(part), was_closed and not part
    return opened_at if is_inside else None


def _ends_field(part: bytes) -> bool:
    return part.endswith((b",", b"\n", b"\r"))
