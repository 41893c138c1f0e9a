"""Rows that are lines of a text, with or without fastText's labels. Also the positions of rows in a file."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.sources.row_bytes import codec, line_blocks, open_bytes, without_bom

LABEL_LISTS = pa.list_(pa.string())
# fastText's format: `__label__good a fine film`, with several labels one after the other.
LABEL = re.compile(r"(?:^|(?<=\s))__label__(\S+)\s*")


class Mark(NamedTuple):
    """The start of a block of whole lines.

    Attributes:
        row: the number of its first row, from 0.
        line: the number of its first line, from 1.
        offset: the position of its first byte in the file.
    """

    row: int
    line: int
    offset: int


BEGINNING = Mark(0, 1, 0)


def marks(path: Path, count: Callable[[bytes], int]) -> list[Mark]:
    """Returns the starts of the blocks of a file, and the end of the last one with the number of all rows.

    Args:
        path: the file.
        count: returns the number of rows of a block of lines.
    """
    found = [BEGINNING]
    with open_bytes(path) as stream:
        for line, data in line_blocks(stream):
            offset = 0 if codec(path) else stream.tell()  # compressed files can only be read from their beginning
            found.append(Mark(found[-1].row + count(data), line + data.count(b"\n"), offset))
    return found


def mark_before(found: Sequence[Mark], path: Path, row: int) -> Mark:
    """Returns the last mark that is not after a row."""
    return BEGINNING if codec(path) else found[bisect_right([mark.row for mark in found], row) - 1]


def blocks_from(path: Path, mark: Mark) -> Iterator[tuple[int, bytes]]:
    """Yields the blocks of lines from a mark on. See `line_blocks`."""
    with open_bytes(path) as stream:
        if mark.offset:
            stream.seek(mark.offset)
        yield from line_blocks(stream, mark.line)


def count_lines(data: bytes) -> int:
    """Returns the number of lines of a block. The last one may lack its line end."""
    return data.count(b"\n") + (not data.endswith(b"\n"))


def has_labels(path: Path) -> bool:
    """Whether a text's first line that is not blank has one of fastText's labels."""
    with open_bytes(path) as stream:
        for _, data in line_blocks(stream):
            first = next((line for line in without_bom(data).split(b"\n") if line.strip()), None)
            if first is not None:
                return LABEL.search(first.decode("utf-8", "replace")) is not None
    return False


def line_tables(path: Path, mark: Mark, text: str, label: str | None) -> Iterator[pa.Table]:
    """Yields the lines of a text from a mark on.

    Args:
        path: the file.
        mark: the start.
        text: the name for the column of lines.
        label: the name for a column with the lists of fastText's labels, which are removed from the text. A line
            without labels has no gold. None if the text has no labels.
    """
    for _, data in blocks_from(path, mark):
        lines = without_bom(data).decode("utf-8").split("\n")
        if not lines[-1]:
            lines.pop()
        if b"\r\n" in data:
            lines = [line.removesuffix("\r") for line in lines]
        if label is None:
            yield pa.table({text: pa.array(lines, pa.string())})
        else:
            labels = pa.array([LABEL.findall(line) or None for line in lines], LABEL_LISTS)
            yield pa.table({text: pa.array([LABEL.sub("", line).strip() for line in lines]), label: labels})
