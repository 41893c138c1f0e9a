"""Reads the bytes of files of rows. Compressed files are decompressed, and other types of files are refused."""

import io
import lzma
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.files import refuse_lfs_pointer

BLOCK_BYTES, NEW_LINE = 2**20, ord("\n")
BYTES_LOOKED_AT = 2**16  # for the type of a file
CONTROL = {*range(0x20), 0x7F} - {*b"\t\n\v\f\r\x1a\x1b"}  # bytes that no text has in any 8-bit encoding


def _arrow(name: str) -> Callable[[Path], Any]:
    """Decompresses with Arrow, which is twice as fast as Python's modules."""
    return lambda path: io.BufferedReader(pa.input_stream(path, compression=name), BLOCK_BYTES)


CODECS: dict[str, Callable[[Path], Any]] = {
    ".gz": _arrow("gzip"),
    ".bz2": _arrow("bz2"),
    ".xz": lzma.open,
    ".zst": _arrow("zstd"),
}
UTF16, UTF32 = (b"\xff\xfe", b"\xfe\xff"), (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")
MAGIC = {  # first bytes of files that people give by mistake, and the type of these files
    b"PAR1": "a Parquet file. Let its name end in .parquet",
    b"ARROW1": "an Arrow file. Let its name end in .arrow",
    b"PK\x03\x04": "a zip archive, like .xlsx. Unpack it, or save the sheet as CSV",
    b"\x1f\x8b": "compressed by gzip. Let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard. Let its name end in .zst",
    b"BZh": "compressed by bzip2. Let its name end in .bz2",
    b"\xfd7zXZ": "compressed by xz. Let its name end in .xz",
    b"SQLite format 3": "a SQLite database. Export the table as CSV",
    b"\xd0\xcf\x11\xe0": "a file of Excel or Word from before 2007. Save the sheet as CSV",
    b"%PDF": "a PDF. Give a file of rows, such as CSV",
    b"\x80\x04": "a pickle, which can run code. Save the rows as Parquet or CSV",
    b"<!DOCTYPE": "a web page, perhaps of a login. Download the file itself",
    b"<html": "a web page, perhaps of a login. Download the file itself",
}


def ending(path: Path) -> str:
    """Returns the extension of a file's format, in small letters: ``.csv`` for ``Train.CSV.gz``."""
    stem = path.with_suffix("") if codec(path) else path
    return stem.suffix.lower()


def codec(path: Path) -> str | None:
    """Returns the extension of a file's compression, or None."""
    last = path.suffix.lower()
    return last if last in CODECS else None


def stem(path: Path) -> str:
    """Returns a file's name without the extensions of its format and compression."""
    return (path.with_suffix("") if codec(path) else path).stem


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file for reading from its beginning, decompressed if needed."""
    compressed = codec(path)
    return path.open("rb") if compressed is None else cast("BinaryIO", CODECS[compressed](path))


def line_blocks(stream: BinaryIO, line: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yields blocks of whole lines from the current position of a stream, each with the number of its first line.

    The first block is small, because some readers infer types from it.

    Args:
        stream: a stream of bytes.
        line: the number of its next line.
    """
    size = BLOCK_BYTES // 16
    while data := stream.read(size):
        if not data.endswith(b"\n"):
            data += stream.readline()
        yield line, data
        line += int(np.count_nonzero(np.frombuffer(data, np.uint8) == NEW_LINE))  # `bytes.count` is slower
        size = BLOCK_BYTES


def without_bom(data: bytes) -> bytes:
    """Returns the bytes without the byte order mark that some programs put before UTF-8."""
    return data.removeprefix(BOM_UTF8)


def not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    """Returns the problem of a line that is not UTF-8, with the letter that users of Windows probably see there."""
    byte = line[error.start : error.start + 1]
    letter = byte.decode("cp1252", "ignore")
    guess = f", but {letter!r} in Windows-1252" if letter else ""
    return f"byte 0x{byte.hex()} is not UTF-8{guess}. Save the file as UTF-8"


def foreign_type(path: Path) -> str | None:
    """Returns the type of a file in `MAGIC` by its first bytes, and what to do about it, or None for others."""
    return _type_of(_beginning(path))


def _beginning(path: Path) -> bytes:
    with open_bytes(path) as stream:
        return stream.read(BYTES_LOOKED_AT)


def _type_of(first: bytes) -> str | None:
    return next((what for magic, what in MAGIC.items() if first.startswith(magic)), None)


def refuse_foreign(path: Path, is_text: bool) -> None:
    """Raises DataError for a file that is recognisably of another type: a pointer of git-lfs, UTF-16, an archive.

    Args:
        path: the file.
        is_text: whether text is expected, so that every type in `MAGIC` is wrong.

    Raises:
        UnicodeDecodeError: if the beginning is text in another encoding than UTF-8.
    """
    refuse_lfs_pointer(path)
    if not is_text:
        return
    first = _beginning(path)
    found = _type_of(first)
    if found is not None:
        raise DataError(f"{path}: is {found}")
    if first.startswith(UTF16 + UTF32) or (len(first) > 3 and b"\0" in first[:4]):
        raise DataError(f'{path}: is UTF-16 or UTF-32, not UTF-8. Save the file as UTF-8. Excel: "CSV UTF-8".')
    try:
        getincrementaldecoder("utf-8")().decode(first)
    except UnicodeDecodeError:
        if CONTROL.isdisjoint(first):
            raise
        raise DataError(f"{path}: is a binary file, not text. Give a text file in UTF-8, such as CSV.") from None
