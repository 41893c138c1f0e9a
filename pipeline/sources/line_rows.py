"""Rows that are lines of a text, with or without fastText's labels; and where in a file rows begin."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.sources.row_bytes import codec, line_blocks, open_bytes, without_bom

PREFIX = "__label__"  # of fastText: `__label__good a fine film`, of several labels one after the other
LABEL_LISTS = pa.list_(pa.string())
LABEL = re.compile(r"(?:^|(?<=\s))__label__(\S+)\s*")


class Mark(NamedTuple):
    """Where a block of whole lines begins.

    Attributes:
        row: the number of its first row, from 0.
        line: the number of its first line, from 1.
        offset: of its first byte in the file.
    """

    row: int
    line: int
    offset: int


BEGINNING = Mark(0, 1, 0)


def marks(path: Path, count: Callable[[bytes], int]) -> list[Mark]:
    """Where each block of a file begins, and where the last one ends, with the number of all rows.

    Args:
        path: the file.
        count: how many rows a block of lines has.
    """
    found = [BEGINNING]
    with open_bytes(path) as stream:
        for line, data in line_blocks(stream):
            offset = 0 if codec(path) else stream.tell()  # packed files are read from their beginning
            found.append(Mark(found[-1].row + count(data), line + data.count(b"\n"), offset))
    return found


def mark_before(found: Sequence[Mark], path: Path, row: int) -> Mark:
    """The last of the marks that is not behind a row."""
    return BEGINNING if codec(path) else found[bisect_right([mark.row for mark in found], row) - 1]


def blocks_from(path: Path, mark: Mark) -> Iterator[tuple[int, bytes]]:
    """The blocks of lines from a mark on, see `line_blocks`."""
    with open_bytes(path) as stream:
        if mark.offset:
            stream.seek(mark.offset)
        yield from line_blocks(stream, mark.line)


def count_lines(data: bytes) -> int:
    """How many lines a block has, of which the last one may lack its end."""
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
    """The lines of a text from a mark on.

    Args:
        path: the file.
        mark: where to begin.
        text: the name for the column of lines.
        label: the name for a column with the lists of fastText's labels, which then are no part of the text; a line
            without any has no gold. None if the text has no labels.
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
