"""Rows of text with a separator between their columns: CSV with quotes, TSV without.

Every column is text without nulls. The task decides what the text means.

Arrow reads files with wrong quotes without an error. Everything after an open quote becomes one text, and everything
after a closing quote becomes a part of the text, so rows are lost and texts change. The quotes are therefore checked
here, and the first misplaced one is named.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from pipeline import console
from pipeline.errors import DataError
from pipeline.sources.row_bytes import codec, open_bytes, without_bom

MAX_ROW_BYTES = 2**26
NUMBER_OF_FIELDS = re.compile(r"Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
TOO_MANY = "A text with a comma needs quotes around it"
UNQUOTED = pc.ParseOptions(delimiter="\t", quote_char=False)  # GLUE's TSV: a quote is a character like any other
QUOTED = pc.ParseOptions(newlines_in_values=True)
SEPARATORS = {";": "';'", "\t": "tabs", ",": "commas", "|": "'|'"}

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


BYTES_LOOKED_AT, LINES_LOOKED_AT = (2**16, 2**20), 5  # the second size is for a header that does not fit into the first


def delimited_names(path: Path, parse: pc.ParseOptions, headerless: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the names of a file's columns, and whether a header names them.

    Args:
        path: the file.
        parse: `QUOTED` or `UNQUOTED`.
        headerless: names for a file with so many columns and without a header.

    Raises:
        DataError: if there are no columns, or they have another separator.
    """
    names: list[str] = []
    for size in BYTES_LOOKED_AT:
        with open_bytes(path) as stream:
            text = stream.read(size).decode("utf-8-sig", "replace")
        try:
            _refuse_other_separator(path, parse.delimiter, text)
            first = list(islice(_fields(text, parse), 2))
        except csv.Error as error:
            raise DataError(f"{path}, line 1: its header cannot be read: {error}") from error
        names = first[0] if first else []
        if len(first) == 2:  # so that the header is not truncated
            break
    if not names:
        raise DataError(f"{path}: is empty, without any columns")
    is_headerless = bool(headerless) and len(names) == len(headerless)
    return (list(headerless) if is_headerless else names), not is_headerless


def _fields(text: str, parse: pc.ParseOptions) -> Iterator[list[str]]:
    rows = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=parse.delimiter,
        quoting=csv.QUOTE_MINIMAL if parse.quote_char else csv.QUOTE_NONE,
    )
    return filter(None, rows)


def delimited_tables(
    path: Path, parse: pc.ParseOptions, names: Sequence[str], has_header: bool, columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Yields the rows of a file as tables of texts, at least one.

    Raises:
        DataError: if the file ends within quotes. Otherwise everything after the quote would be one text, and rows
            would be lost.
    """
    convert = pc.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    options = pc.ReadOptions(column_names=None if has_header else list(names), block_size=MAX_ROW_BYTES)
    with open_bytes(path) as stream:
        watch: Any = QuoteWatch(stream) if parse.quote_char else stream
        is_plain_path = codec(path) is None and not parse.quote_char  # which Arrow reads fastest
        try:
            reader = pc.open_csv(path if is_plain_path else watch, options, parse, convert)
            wanted = reader.schema.names if columns is None else list(columns)
            yield reader.schema.empty_table().select(wanted)
            for block in reader:
                yield pa.Table.from_batches([block]).select(wanted)
        except pa.ArrowInvalid as error:
            _check_quotes(path, watch)
            if "Empty CSV file" in str(error):  # a header without a line end
                yield pa.table({name: pa.array([], pa.string()) for name in names}).select(columns or names)
            elif "Expected" in str(error) and parse.quote_char:
                raise DataError(f"{path}: {error}. {_advice(str(error))}") from error
            else:
                raise
        _check_quotes(path, watch)


def _check_quotes(path: Path, watch: Any) -> None:
    """Warns about the first misplaced quote.

    Raises:
        DataError: if quotes are not closed.
    """
    if not isinstance(watch, QuoteWatch) or not (watch.is_inside or watch.is_odd):
        return
    unclosed, fault = quote_faults(path)
    if unclosed is not None:
        raise DataError(
            f"{path}: ends within quotes that begin in line {unclosed}. The file is truncated, or a quote is "
            "missing there"
        )
    if fault is not None:
        _warn_once(f"{path}, {fault}")


@cache
def _warn_once(message: str) -> None:  # files are read several times
    console.warn(message)


def _advice(error: str) -> str:
    """Returns what to do if a row and the header have different numbers of fields, from Arrow's message."""
    found = NUMBER_OF_FIELDS.search(error)
    if found is None:
        return TOO_MANY
    expected, got, row = int(found[1]), int(found[2]), found[3].rstrip()
    if got == expected + 1 and row.endswith(","):
        return "The row ends with a comma. Remove it, or name that column in the header"
    if '\\"' in row:
        return "A backslash is a normal character in CSV. Write a quote in a text twice"
    return "A value is missing, or a text with a line break needs quotes around it" if got < expected else TOO_MANY


def _refuse_other_separator(path: Path, delimiter: str, text: str) -> None:
    """Raises DataError if the first lines have one column, but several with another separator."""
    lines = text.splitlines()[:LINES_LOOKED_AT]
    if not lines or delimiter in lines[0]:
        return
    for other, name in SEPARATORS.items():
        # some separators may be within quotes
        counts = {len(fields) for fields in csv.reader(lines, delimiter=other) if fields}
        if len(counts) == 1 and counts != {1} and other != delimiter:
            rename = {"\t": ", or rename it to .tsv", ",": ", or rename it to .csv"}.get(other, "")
            advice = f"Save it with {SEPARATORS[delimiter]}{rename}"
            raise DataError(f"{path}, line 1: its columns seem to be separated by {name}. {advice}")
