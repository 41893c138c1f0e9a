"""Rows of text with a separator between their columns: CSV with quotes, TSV without.

Every column is text, in which nothing is null: what it means, a task decides.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from pipeline.errors import DataError
from pipeline.sources.row_bytes import codec, open_bytes

MAX_ROW_BYTES = 2**26
QUOTE = ord('"')
UNQUOTED = pc.ParseOptions(delimiter="\t", quote_char=False)  # GLUE's TSV: a quote is a character like any other
QUOTED = pc.ParseOptions(newlines_in_values=True)
SEPARATORS = {";": "';'", "\t": "tabs", ",": "commas", "|": "'|'"}
BYTES_LOOKED_AT, LINES_LOOKED_AT = (2**16, 2**20), 5  # the second number for a header that is longer than the first


class QuoteCount:
    """A stream that counts the quotes of what is read from it."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as those of any stream."""
        data = self.stream.read(size)
        # `bytes.count` searches for each quote anew, which takes three times as long where every text has two.
        self.count += int(np.count_nonzero(np.frombuffer(data, np.uint8) == QUOTE))
        return data


def delimited_names(path: Path, parse: pc.ParseOptions, headerless: Sequence[str]) -> tuple[list[str], bool]:
    """The names of a file's columns, and whether it has a header that names them.

    Args:
        path: the file.
        parse: `QUOTED` or `UNQUOTED`.
        headerless: names for as many columns without a header.

    Raises:
        DataError: if the columns are parted by something else.
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
        if len(first) == 2:  # so that the header is not cut off
            break
    is_headerless = bool(headerless) and len(names) == len(headerless)
    return (list(headerless) if is_headerless else names), not is_headerless


def _fields(text: str, parse: pc.ParseOptions) -> Iterator[list[str]]:
    """The fields of each row that is not blank."""
    rows = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=parse.delimiter,
        quoting=csv.QUOTE_MINIMAL if parse.quote_char else csv.QUOTE_NONE,
    )
    return filter(None, rows)


def delimited_tables(
    path: Path, parse: pc.ParseOptions, names: Sequence[str], has_header: bool, columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """The rows of a file as tables of texts, one at least.

    Raises:
        DataError: if the file ends within quotes; what follows them would be one text, and rows be lost.
    """
    convert = pc.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    options = pc.ReadOptions(column_names=None if has_header else list(names), block_size=MAX_ROW_BYTES)
    with open_bytes(path) as stream:
        counted: Any = QuoteCount(stream) if parse.quote_char else stream
        is_plain_path = codec(path) is None and not parse.quote_char  # which Arrow reads fastest
        try:
            reader = pc.open_csv(path if is_plain_path else counted, options, parse, convert)
            wanted = reader.schema.names if columns is None else list(columns)
            yield reader.schema.empty_table().select(wanted)
            for block in reader:
                yield pa.Table.from_batches([block]).select(wanted)
        except pa.ArrowInvalid as error:
            _refuse_unclosed_quote(path, counted)
            if "Empty CSV file" in str(error):  # a header without an end of its line
                yield pa.table({name: pa.array([], pa.string()) for name in names}).select(columns or names)
            elif "Expected" in str(error) and parse.quote_char:
                raise DataError(f"{path}: {error}; a text with a comma needs quotes around it") from error
            else:
                raise
        _refuse_unclosed_quote(path, counted)


def _refuse_unclosed_quote(path: Path, counted: Any) -> None:
    """Raises DataError if quotes are not closed; only an odd number of quotes can be."""
    if isinstance(counted, QuoteCount) and counted.count % 2 and (number := unclosed_quote(path)) is not None:
        raise DataError(
            f"{path}: ends within quotes that begin in line {number}; the file is cut off, or a quote is missing there"
        )


def _refuse_other_separator(path: Path, delimiter: str, text: str) -> None:
    """Raises DataError where the first lines have one column, and by another separator several, as many in each."""
    lines = text.splitlines()[:LINES_LOOKED_AT]
    if not lines or delimiter in lines[0]:
        return
    for other, name in SEPARATORS.items():
        counts = {len(fields) for fields in csv.reader(lines, delimiter=other) if fields}  # some may be within quotes
        if len(counts) == 1 and counts != {1} and other != delimiter:
            right = "tabs" if delimiter == "\t" else "commas"
            advice = f"save it with {right}" + ("; or let its name end in .tsv" if other == "\t" else "")
            raise DataError(f"{path}, line 1: its columns seem to be parted by {name}; {advice}")


def unclosed_quote(path: Path) -> int | None:
    """The line, from 1, of the quote within which a CSV file ends; None if it ends outside quotes.

    Arrow takes what follows such a quote as one text. Only a file with an odd number of quotes has one: in a whole file
    those around texts are even, and those within them are doubled.
    """
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
