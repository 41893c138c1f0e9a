"""The one reader of files of rows: Parquet, CSV, TSV, JSON lines, or a text with a row on each line.

Rows are read in their order, a batch at a time, so that few of many are in memory. A format is a function in the table
`FORMATS`, by the ending of its files.
"""

from bisect import bisect_left
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.untrusted import parse_json

ROWS_PER_BATCH = 8192
MAX_ROW_BYTES = 2**26
UNQUOTED = pc.ParseOptions(delimiter="\t", quote_char=False)  # GLUE's TSV: a quote is a character like any other
QUOTED = pc.ParseOptions(newlines_in_values=True)

Batches = Iterator[pa.Table]
Numbered = tuple[int, dict[str, Any]]  # the number of a line, from 1, and the row that it holds


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
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; known: {', '.join(FORMATS)}")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty, without columns even")
    with reading(path):
        opened = FORMATS[path.suffix](path, Naming(headerless_columns, line_column))
        twice = next((name for name, count in Counter(opened.names).items() if count > 1 and name), None)
    if twice is not None:  # so that it is not plain which one is meant
        raise DataError(f"{path}: the column {twice!r} is there twice; rename or remove one")
    return RowFile(path, opened.names, opened)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what can go wrong while a file is read into a DataError; of text that is not UTF-8 with the line."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        if ("UTF8" in str(error) or isinstance(error, UnicodeDecodeError)) and path.suffix != ".parquet":
            raise DataError(f"{path}: {_bad_line(path)}") from error
        raise DataError(f"{path}: not a readable {path.suffix[1:]} file: {str(error).splitlines()[0]}") from error


def joined_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The types of columns over several batches: whole numbers and others are numbers, nulls alone are text."""
    schema = _joined(*schemas)
    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema])


def parsed_lines(place: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Numbered]:
    """The objects on the lines of JSON that are not blank, with the lines' numbers.

    Raises:
        DataError: if a line is something else, naming it.
    """
    for number, line in lines:
        if line.strip():
            try:
                row = parse_json(line.removeprefix(BOM_UTF8), may_be_nan=True)  # as Python and pandas write it
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: line {number}: {_not_utf8(line, error)}") from error
            except ValueError as error:
                raise DataError(f"{place}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{place}, line {number}: not an object with columns, but {str(row)[:60]!r}")
            yield number, row


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
    with path.open(encoding="utf-8-sig") as stream:
        first = stream.readline()
    is_headerless = headerless_columns and len(first.split(parse.delimiter)) == len(headerless_columns)
    names = list(headerless_columns) if is_headerless else first.rstrip("\r\n").split(parse.delimiter)
    types = {name.strip('"'): pa.string() for name in names}
    convert = pc.ConvertOptions(column_types=types, strings_can_be_null=False)
    options = pc.ReadOptions(column_names=names if is_headerless else None, block_size=MAX_ROW_BYTES)

    def read(columns: Sequence[str] | None, _: pa.Schema | None) -> Batches:
        reader = pc.open_csv(path, options, parse, convert)
        wanted = reader.schema.names if columns is None else list(columns)
        yield reader.schema.empty_table().select(wanted)
        for block in reader:
            table = pa.Table.from_batches([block]).select(wanted)
            for start in range(0, table.num_rows, ROWS_PER_BATCH):
                yield table.slice(start, ROWS_PER_BATCH)

    return Opened(pc.open_csv(path, options, parse, convert).schema.names, read)


def _text_lines(path: Path, naming: Naming) -> Opened:
    def read(columns: Sequence[str] | None, _: pa.Schema | None) -> Batches:
        yield pa.table({naming.line: pa.array([], pa.string())})
        with path.open(encoding="utf-8-sig", newline="\n") as stream:
            lines = (line.removesuffix("\n").removesuffix("\r") for line in stream)
            while group := list(islice(lines, ROWS_PER_BATCH)):
                yield pa.table({naming.line: pa.array(group, pa.string())})

    return Opened([naming.line], read)


def _json_lines(path: Path, naming: Naming) -> Opened:
    def groups() -> Iterator[list[Numbered]]:
        with path.open("rb") as stream:
            rows = parsed_lines(str(path), enumerate(stream, start=1))
            while group := list(islice(rows, ROWS_PER_BATCH)):
                yield group

    def read(columns: Sequence[str] | None, schema: pa.Schema | None) -> Batches:
        before = pa.schema([(name, pa.null()) for name in columns or ()])
        is_empty = True
        for group in groups():
            if schema is not None:
                table = _typed_table(group, schema)
            else:
                table = _inferred_table(str(path), group, columns, before)
                before = _joined(before, table.schema)
            is_empty = False
            yield table
        if is_empty:
            yield (schema or before).empty_table()

    return Opened(list(dict.fromkeys(name for _, row in next(groups(), []) for name in row)), read)


FORMATS: dict[str, Callable[[Path, Naming], Opened]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".csv": _csv,
    ".tsv": _tsv,
    ".txt": _text_lines,
}


def _typed_table(rows: Sequence[Numbered], schema: pa.Schema) -> pa.Table:
    records = [{name: row.get(name) for name in schema.names} for _, row in rows]
    return pa.Table.from_struct_array(pa.array(records, pa.struct(list(schema))))


def _inferred_table(place: str, rows: Sequence[Numbered], columns: Sequence[str] | None, before: pa.Schema) -> pa.Table:
    """Rows of JSON as a table, null where a row has no value.

    Args:
        place: the file, for messages.
        rows: objects, and the line of each.
        columns: which of their values; all by default.
        before: the types in the rows before, which these have to fit.

    Raises:
        DataError: if values of a column are of different types, naming the line.
    """
    records = [row if columns is None else {name: row.get(name) for name in columns} for _, row in rows]
    try:
        table = pa.Table.from_struct_array(pa.array(records))  # of all columns at once, which is several times faster
        _joined(before, table.schema)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        names = dict.fromkeys(name for record in records for name in record)
        odd = (_odd_value(place, rows, name, before) for name in names)
        raise DataError(next(filter(None, odd), f"{place}: {error}")) from error
    return table


def _odd_value(place: str, rows: Sequence[Numbered], name: str, before: pa.Schema) -> str | None:
    """Says which value of a column is the first that does not fit those before; None if all do."""
    values = [row.get(name) for _, row in rows]
    kind = before.field(name).type if name in before.names else pa.null()

    def fails(count: int) -> bool:
        try:
            _joined(pa.schema([("", kind)]), pa.schema([("", pa.array(values[:count]).type)]))
        except (pa.ArrowException, ValueError, OverflowError):
            return True
        return False

    if not fails(len(values)):
        return None
    bad = bisect_left(range(len(values)), True, key=lambda row: fails(row + 1))
    wanted = "" if pa.types.is_null(kind) else f" ({kind})"
    return (
        f"{place}, line {rows[bad][0]}: {name!r} is {values[bad]!r}, which is not of the type of the rows "
        f"before{wanted}; a column has one type"
    )


def _joined(*schemas: pa.Schema) -> pa.Schema:
    return pa.unify_schemas(schemas, promote_options="permissive")


def _bad_line(path: Path) -> str:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"line {number}: {_not_utf8(line, error)}"
    return "is not UTF-8; save the file as UTF-8"


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    return f"byte 0x{line[error.start]:02x} is not UTF-8; save the file as UTF-8"
