"""Checks the quotes of CSV, and finds the first misplaced one.

Arrow reads files with wrong quotes without an error. Everything after an open quote becomes one text, and everything
after a closing quote becomes a part of the text, so rows are lost and texts change.
"""

from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from pipeline.sources.row_bytes import open_bytes, without_bom

QUOTE, BACKSLASH = ord('"'), b"\\"
ENDS = b",\r\n"  # of fields
MAY_ADJOIN = np.isin(
    np.arange(256), list(ENDS + b'"')
)  # bytes that are allowed before an opening and after a closing quote
SHOWN = 40


class QuoteWatch:
    """A stream that checks the quotes in the bytes that are read from it.

    Attributes:
        is_inside: whether a quote is open, assuming that no quote is misplaced.
        is_odd: whether a quote is misplaced: a separator must stand before an opening quote and after a closing one.
    """

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.is_inside, self.is_odd = stream, False, False
        self._last = ord("\n")

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, like any stream."""
        data = self.stream.read(size)
        if data and not self.is_odd:
            self._look(np.frombuffer(data, np.uint8))
        return data

    def _look(self, data: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> None:
        # In a valid file each quote opens or closes. A doubled quote closes and opens again.
        places = np.flatnonzero(data == QUOTE)
        if self._last == QUOTE and not self.is_inside:
            self.is_odd |= not MAY_ADJOIN[data[0]]
        opening, closing = places[self.is_inside :: 2], places[not self.is_inside :: 2]
        self.is_inside ^= bool(len(places) % 2)
        if len(opening) and opening[0] == 0:
            self.is_odd |= not MAY_ADJOIN[self._last]
            opening = opening[1:]
        if len(closing) and closing[-1] == len(data) - 1:
            closing = closing[:-1]
        if not self.is_odd:
            self.is_odd = not (MAY_ADJOIN[data[opening - 1]].all() and MAY_ADJOIN[data[closing + 1]].all())
        self._last = int(data[-1])


class QuoteFaults(NamedTuple):
    """The problems with the quotes of a file.

    Attributes:
        unclosed: the line, from 1, of the quote that is still open at the end of the file, or None.
        fault: a description of the first field with text after its closing quote, or None.
    """

    unclosed: int | None
    fault: str | None


def quote_faults(path: Path) -> QuoteFaults:
    """Reads a CSV file like Arrow, but quote by quote, which takes ten times as long."""
    is_inside, was_closed, may_open, opened_at = False, False, True, 0
    fault: str | None = None
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            first, *others = (without_bom(line) if number == 1 else line).split(b'"')
            may_open, was_closed = (may_open and not first) or _ends_field(first), was_closed and not first
            before = first
            for part in others:  # a quote precedes each of them
                if is_inside:
                    is_inside, was_closed = False, True
                    if fault is None and part.lstrip(b" ") and part.lstrip(b" ")[0] not in ENDS:
                        fault = _in_words(opened_at, number, before, part)
                elif was_closed:  # a doubled quote: the text goes on
                    is_inside, was_closed = True, False
                elif may_open:  # only at the beginning of a field. Elsewhere it is a normal character
                    is_inside, opened_at = True, number
                may_open, was_closed = _ends_field(part), was_closed and not part
                before = part
    return QuoteFaults(opened_at if is_inside else None, fault)


def _ends_field(part: bytes) -> bool:
    return part.endswith((b",", b"\n", b"\r"))


def _in_words(opened_at: int, number: int, before: bytes, part: bytes) -> str:
    begins = "" if opened_at == number else f" of a text that begins in line {opened_at}"
    shown = part.decode("utf-8", "replace").strip()[:SHOWN]
    if before.endswith(BACKSLASH):
        advice = "A backslash is a normal character in CSV"
    else:
        advice = "A quote may be missing before it"
    return f"line {number}: {shown!r} stands after the closing quote{begins}. {advice}. Write a quote in a text twice"
