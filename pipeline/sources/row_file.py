"""The rows of one file in their order, a batch at a time: of many rows few are in memory."""

from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.sources.local import EXTENSIONS, UNQUOTED_TSV, check_names, delimited_options, reading
from pipeline.untrusted import parse_json

ROWS_PER_BATCH = 8192
BLOCK_BYTES = 2**24
LINE = "sentence1"  # what the column of a file without columns is called

Batches = Iterator[pa.Table]
Numbered = tuple[int, dict[str, Any]]  # the number of a line, from 1, and the row that it holds


@dataclass(frozen=True)
class RowFile:
    """A file of rows.

    Attributes:
        path: the file.
        names: of its columns; of JSON lines those of the first batch.
        read: given names, gives these columns batch by batch, always from the beginning; never less than one batch.
    """

    path: Path
    names: list[str]
    read: Callable[[Sequence[str]], Batches]


def open_rows(path: Path, headerless_tsv_columns: tuple[str, ...] = ()) -> RowFile:
    """Opens a Parquet, CSV, TSV or JSON lines file, or a text with a row on each line.

    Args:
        path: the file.
        headerless_tsv_columns: names for the columns of a TSV that has no header.

    Raises:
        DataError: if it is none of these; reading raises it too, naming the row, the line or the column that is wrong.
    """
    kinds: dict[str, Callable[[], tuple[list[str], Callable[[Sequence[str]], Batches]]]] = {
        ".parquet": lambda: _parquet(path),
        ".jsonl": lambda: _json_lines(path),
        ".csv": lambda: _delimited(path, pc.ParseOptions(newlines_in_values=True), ()),
        ".tsv": lambda: _delimited(path, UNQUOTED_TSV, headerless_tsv_columns),
        ".txt": lambda: ([LINE], lambda _: _text_lines(path)),
    }
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix not in kinds:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; known: {', '.join((*EXTENSIONS, '.txt'))}")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty, without columns even")

    def read(columns: Sequence[str]) -> Batches:
        with reading(path):
            yield from read_columns(columns)

    with reading(path):
        names, read_columns = kinds[path.suffix]()
        check_names(path, names)
    return RowFile(path, names, read)


def parsed(place: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Numbered]:
    """The objects on the lines of JSON that are not blank, with the lines' numbers.

    Raises:
        DataError: if a line is something else, naming it.
    """
    for number, line in lines:
        if line.strip():
            try:
                row = parse_json(line.removeprefix(BOM_UTF8))
            except ValueError as error:  # bytes that are not UTF-8 among them
                raise DataError(f"{place}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise DataError(f"{place}, line {number}: not an object with columns, but {str(row)[:60]!r}")
            yield number, row


def table_of(place: str, rows: Sequence[Numbered], columns: Sequence[str], schema: pa.Schema | None = None) -> pa.Table:
    """Rows of JSON as a table.

    Args:
        place: the file, for messages.
        rows: objects, and the line of each.
        columns: which of their values, null where a row has none.
        schema: of the rows before, whose types these must have.

    Raises:
        DataError: if values of a column are of different types, or of other keys than those before; naming the line.
    """
    arrays = [_column(place, rows, name, schema and schema.field(name).type) for name in columns]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _column(place: str, rows: Sequence[Numbered], name: str, kind: pa.DataType | None) -> pa.Array:
    values = [row.get(name) for _, row in rows]

    def fails(count: int) -> bool:
        try:
            pa.array(values[:count], kind)
        except (pa.ArrowException, ValueError, OverflowError):
            return True
        return kind is not None and any(_has_new_key(value, kind) for value in values[:count])

    if not fails(len(values)):
        column = pa.array(values, kind)
        return column.cast(pa.string()) if pa.types.is_null(column.type) else column
    bad = bisect_left(range(len(values)), True, key=lambda row: fails(row + 1))
    wanted = "" if kind is None else f" ({kind})"
    raise DataError(
        f"{place}, line {rows[bad][0]}: {name!r} is {values[bad]!r}, which is not of the type of the rows "
        f"before{wanted}; a column has one type"
    )


def _has_new_key(value: Any, kind: pa.DataType) -> bool:
    """Whether an object in a value has a key that its type has not, which pyarrow would drop."""
    if isinstance(value, dict):
        known = {field.name: field.type for field in kind}
        return any(name not in known or _has_new_key(one, known[name]) for name, one in value.items())
    return isinstance(value, list) and any(_has_new_key(one, kind.value_type) for one in value)


def _parquet(path: Path) -> tuple[list[str], Callable[[Sequence[str]], Batches]]:
    def opened() -> pq.ParquetFile:
        # not pre-buffered, so that a large row group is never whole in memory
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)

    def read(columns: Sequence[str]) -> Batches:
        file = opened()
        yield file.schema_arrow.empty_table().select(columns)
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(columns)):
            yield pa.Table.from_batches([batch]).select(columns)

    return opened().schema_arrow.names, read


def _delimited(
    path: Path, parse: pc.ParseOptions, headerless: tuple[str, ...]
) -> tuple[list[str], Callable[[Sequence[str]], Batches]]:
    options, convert = delimited_options(path, parse, headerless, BLOCK_BYTES)

    def read(columns: Sequence[str]) -> Batches:
        reader = pc.open_csv(path, options, parse, convert)
        yield reader.schema.empty_table().select(columns)
        for block in reader:
            table = pa.Table.from_batches([block]).select(columns)
            for start in range(0, table.num_rows, ROWS_PER_BATCH):
                yield table.slice(start, ROWS_PER_BATCH)

    return pc.open_csv(path, options, parse, convert).schema.names, read


def _json_lines(path: Path) -> tuple[list[str], Callable[[Sequence[str]], Batches]]:
    def groups() -> Iterator[list[Numbered]]:
        with path.open("rb") as stream:
            rows = parsed(str(path), enumerate(stream, start=1))
            while group := list(islice(rows, ROWS_PER_BATCH)):
                yield group

    def read(columns: Sequence[str]) -> Batches:
        schema = None
        for group in groups():
            table = table_of(str(path), group, columns, schema)
            schema = table.schema
            yield table
        if schema is None:
            yield table_of(str(path), [], columns)

    return list(dict.fromkeys(name for _, row in next(groups(), []) for name in row)), read


def _text_lines(path: Path) -> Batches:
    yield pa.table({LINE: pa.array([], pa.string())})
    with path.open(encoding="utf-8-sig", newline="\n") as stream:
        lines = (line.removesuffix("\n").removesuffix("\r") for line in stream)
        while group := list(islice(lines, ROWS_PER_BATCH)):
            yield pa.table({LINE: pa.array(group, pa.string())})
