"""The one reader of files of rows: Parquet, Arrow, CSV, TSV, JSON, or a text with a row on each line.

Rows are read in their order, a batch at a time, so that few of many are in memory. A format is a function in the table
`FORMATS`, by the ending of its files in letters of any case. Text may be compressed by gzip, bzip2, xz or Zstandard.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from lzma import LZMAError
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.sources.json_rows import ROWS_PER_BATCH, json_names, json_tables, not_utf8, unified
from pipeline.sources.row_bytes import codec, ending, open_bytes, refuse_foreign, unclosed_quote

MAX_ROW_BYTES = 2**26
UNQUOTED = pc.ParseOptions(delimiter="\t", quote_char=False)  # GLUE's TSV: a quote is a character like any other
QUOTED = pc.ParseOptions(newlines_in_values=True)

BINARY = (".parquet", ".arrow", ".feather")
SEPARATORS = {";": "';'", "\t": "tabs", ",": "commas", "|": "'|'"}
LINES_LOOKED_AT = 5

Batches = Iterator[pa.Table]


class Naming(NamedTuple):
    """What columns are called where a file does not name them."""

    headerless: tuple[str, ...]  # of a TSV that has so many columns, and no header
    line: str  # of a text


class Opened(NamedTuple):
    """A file of a certain format: its columns (of JSON lines those of the first batch), and what reads them.

    ``read`` takes names of columns, None for all, and their types, which only JSON lines have no other way to know.
    """

    names: list[str]
    read: Callable[[Sequence[str] | None, pa.Schema | None], Batches]


@dataclass(frozen=True)
class RowFile:
    """A file of rows.

    Attributes:
        path: the file.
        names: of its columns; of JSON lines those of the first batch.
    """

    path: Path
    names: list[str]
    _opened: Opened

    def batches(self, columns: Sequence[str] | None = None, schema: pa.Schema | None = None) -> Batches:
        """Reads rows from the beginning, one batch at least.

        Args:
            columns: which columns; all by default.
            schema: their types over all rows, see `joined_schema`. Without it, JSON lines have in each batch those of
                its values and of the batches before.

        Raises:
            DataError: naming the row, the line or the column that is wrong.
        """
        with reading(self.path):
            yield from self._opened.read(columns, schema)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads all rows at once; errors as of `batches`."""
        with reading(self.path):
            return pa.concat_tables(self.batches(columns), promote_options="permissive")


def open_rows(path: Path, headerless_columns: tuple[str, ...] = (), line_column: str = "sentence1") -> RowFile:
    """Opens a file of any of the `FORMATS`.

    Args:
        path: the file.
        headerless_columns: names for the columns of a TSV that has no header.
        line_column: name for the column of a text.

    Raises:
        DataError: if there is no such file, or it is not what its ending says.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    kind = ending(path)
    if kind not in FORMATS:
        raise DataError(f"{path}: unknown kind of file {kind!r}; known: {', '.join(FORMATS)}")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty, without columns even")
    if codec(path) and kind in BINARY:
        raise DataError(f"{path}: unpack it first; a {kind} file is read from several places, and may compress columns")
    with reading(path):
        refuse_foreign(path, is_text=kind not in BINARY)
        opened = FORMATS[kind](path, Naming(headerless_columns, line_column))
        twice = next((name for name, count in Counter(opened.names).items() if count > 1 and name), None)
    if twice is not None:  # so that it is not plain which one is meant
        raise DataError(f"{path}: the column {twice!r} is there twice; rename or remove one")
    return RowFile(path, opened.names, opened)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what can go wrong while a file is read into a DataError; of text that is not UTF-8 with the line."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, LZMAError, UnicodeDecodeError, KeyError) as error:
        if ("UTF8" in str(error) or isinstance(error, UnicodeDecodeError)) and ending(path) not in BINARY:
            raise DataError(f"{path}: {_bad_line(path)}") from error
        what = f"{ending(path)[1:]} file" + (", or its compression is cut off" if codec(path) else "")
        raise DataError(f"{path}: not a readable {what}: {str(error).splitlines()[0]}") from error


def joined_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The types of columns over several batches: whole numbers and others are numbers, nulls alone are text."""
    schema = unified(*schemas)
    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema])


def _parquet(path: Path, naming: Naming) -> Opened:
    def opened() -> pq.ParquetFile:
        # not pre-buffered, so that a large row group is never whole in memory
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)

    def read(columns: Sequence[str] | None, _: pa.Schema | None) -> Batches:
        file = opened()
        names = file.schema_arrow.names if columns is None else list(columns)
        yield file.schema_arrow.empty_table().select(names)
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=None if columns is None else names):
            yield pa.Table.from_batches([batch]).select(names)

    return Opened(opened().schema_arrow.names, read)


def _csv(path: Path, naming: Naming) -> Opened:
    return _delimited(path, QUOTED, ())


def _tsv(path: Path, naming: Naming) -> Opened:
    return _delimited(path, UNQUOTED, naming.headerless)


def _delimited(path: Path, parse: pc.ParseOptions, headerless_columns: tuple[str, ...]) -> Opened:
    """Every column is text, in which nothing is null: what it means, a task knows."""
    with open_bytes(path) as stream:
        lines = [line.decode("utf-8-sig") for line in islice(stream, LINES_LOOKED_AT)]
    first = lines[0]
    _refuse_other_separator(path, parse.delimiter, lines)
    if parse.quote_char and (number := unclosed_quote(path)) is not None:
        raise DataError(
            f"{path}: ends within quotes that begin in line {number}; the file is cut off, or a quote is missing there"
        )
    is_headerless = headerless_columns and len(first.split(parse.delimiter)) == len(headerless_columns)
    names = list(headerless_columns) if is_headerless else first.rstrip("\r\n").split(parse.delimiter)
    types = {name.strip('"'): pa.string() for name in names}
    convert = pc.ConvertOptions(column_types=types, strings_can_be_null=False)
    options = pc.ReadOptions(column_names=names if is_headerless else None, block_size=MAX_ROW_BYTES)

    def read(columns: Sequence[str] | None, _: pa.Schema | None) -> Batches:
        reader = pc.open_csv(_source(path), options, parse, convert)
        wanted = reader.schema.names if columns is None else list(columns)
        yield reader.schema.empty_table().select(wanted)
        for block in reader:
            table = pa.Table.from_batches([block]).select(wanted)
            for start in range(0, table.num_rows, ROWS_PER_BATCH):
                yield table.slice(start, ROWS_PER_BATCH)

    return Opened(pc.open_csv(_source(path), options, parse, convert).schema.names, read)


def _source(path: Path) -> Any:
    """What Arrow reads: the path, which it reads fastest, or the unpacked bytes."""
    return path if codec(path) is None else open_bytes(path)


def _refuse_other_separator(path: Path, delimiter: str, lines: Sequence[str]) -> None:
    """Raises DataError where the first lines have one column, and by another separator several, as many in each."""
    if delimiter in lines[0]:
        return
    for other, name in SEPARATORS.items():
        counts = {line.count(other) for line in lines if line.strip()}
        if len(counts) == 1 and counts != {0} and other != delimiter:
            right = "tabs" if delimiter == "\t" else "commas"
            advice = f"save it with {right}" + ("; or let its name end in .tsv" if other == "\t" else "")
            raise DataError(f"{path}, line 1: its columns seem to be parted by {name}; {advice}")


def _text_lines(path: Path, naming: Naming) -> Opened:
    def read(columns: Sequence[str] | None, _: pa.Schema | None) -> Batches:
        yield pa.table({naming.line: pa.array([], pa.string())})
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="\n") as stream:
            lines = (line.removesuffix("\n").removesuffix("\r") for line in stream)
            while group := list(islice(lines, ROWS_PER_BATCH)):
                yield pa.table({naming.line: pa.array(group, pa.string())})

    return Opened([naming.line], read)


def _json(path: Path, naming: Naming) -> Opened:
    return Opened(json_names(path), lambda columns, schema: json_tables(path, columns, schema))


def _arrow(path: Path, naming: Naming) -> Opened:
    """Arrow's file format, which Feather is, too, or its stream, as `datasets` writes it."""

    def batches() -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(path)) as source:
            try:
                file = pa.ipc.open_file(source)
            except pa.ArrowInvalid:
                source.seek(0)
                stream = pa.ipc.open_stream(source)
                yield pa.RecordBatch.from_pylist([], stream.schema)
                yield from stream
            else:
                yield pa.RecordBatch.from_pylist([], file.schema)
                yield from (file.get_batch(k) for k in range(file.num_record_batches))

    def read(columns: Sequence[str] | None, _: pa.Schema | None) -> Batches:
        for batch in batches():
            table = pa.Table.from_batches([batch])
            chosen = table if columns is None else table.select(list(columns))
            for start in range(0, max(chosen.num_rows, 1), ROWS_PER_BATCH):
                yield chosen.slice(start, ROWS_PER_BATCH)

    return Opened(next(batches()).schema.names, read)


FORMATS: dict[str, Callable[[Path, Naming], Opened]] = {
    ".parquet": _parquet,
    ".jsonl": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".txt": _text_lines,
    ".json": _json,
    ".ndjson": _json,
    ".arrow": _arrow,
    ".feather": _arrow,
}


def _bad_line(path: Path) -> str:
    with open_bytes(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"line {number}: {not_utf8(line, error)}"
    return "is not UTF-8; save the file as UTF-8"
