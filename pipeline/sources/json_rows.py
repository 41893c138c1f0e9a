"""Rows of JSON: an object on each line, or one array of objects."""

from bisect import bisect_left
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import DataError
from pipeline.sources.row_bytes import open_bytes
from pipeline.untrusted import parse_json

ROWS_PER_BATCH = 8192
NEW_LINE = b"\n"
MAX_ARRAY_BYTES = 2**31  # an array is in memory as a whole; lines are not
Numbered = tuple[int, dict[str, Any]]  # the number of a line, or of an array's element, from 1, and the row there


def json_groups(path: Path) -> Iterator[list[Numbered]]:
    """Reads a file of JSON rows, `ROWS_PER_BATCH` at a time.

    Raises:
        DataError: naming the line or the element that is no object with columns.
    """
    with open_bytes(path) as stream:
        first = next((line for line in stream if line.removeprefix(BOM_UTF8).strip()), b"")
    is_array = first.removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    with open_bytes(path) as stream:
        if is_array:
            rows = _elements(str(path), stream.read(MAX_ARRAY_BYTES + 1))
        else:
            rows = parsed_lines(str(path), enumerate(stream, start=1))
        while group := list(islice(rows, ROWS_PER_BATCH)):
            yield group


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
                raise DataError(f"{place}: line {number}: {not_utf8(line, error)}") from error
            except ValueError as error:
                raise DataError(f"{place}, line {number}: {_not_json(line, error)}") from error
            if not isinstance(row, dict):
                raise DataError(f"{place}, line {number}: not an object with columns, but {str(row)[:60]!r}")
            yield number, row


def json_names(path: Path) -> list[str]:
    """The columns of the first batch of rows."""
    return list(dict.fromkeys(name for _, row in next(json_groups(path), []) for name in row))


def json_tables(path: Path, columns: Sequence[str] | None, schema: pa.Schema | None) -> Iterator[pa.Table]:
    """Reads rows of JSON as tables, one at least.

    Args:
        path: the file.
        columns: which columns; all by default.
        schema: their types; without it those of the values of a batch and of the batches before.
    """
    before = pa.schema([(name, pa.null()) for name in columns or ()])
    is_empty = True
    for group in json_groups(path):
        if schema is not None:
            table = _typed_table(group, schema)
        else:
            table = _inferred_table(str(path), group, columns, before)
            before = unified(before, table.schema)
        is_empty = False
        yield table
    if is_empty:
        yield (schema or before).empty_table()


def not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    """What is wrong with a line that is not UTF-8."""
    return f"byte 0x{line[error.start]:02x} is not UTF-8; save the file as UTF-8"


def _not_json(line: bytes, error: ValueError) -> str:
    """What is wrong with a line that is no JSON, and for the usual reasons what to do."""
    text = line.strip()
    if text.endswith(b","):
        return "ends with a comma; give an object on each line without commas, or all of them in [ ]"
    if text in (b"{", b"[") or (text.startswith(b"{") and not text.endswith(b"}")):
        return "an object that goes on in the next line, or that is cut off; give each on one line, or all in [ ]"
    return f"not JSON: {error}"


def _elements(place: str, data: bytes) -> Iterator[Numbered]:
    """The objects of an array, with their numbers from 1."""
    if len(data) > MAX_ARRAY_BYTES:
        raise DataError(f"{place}: an array of more than 2 GiB; give an object on each line, which needs no memory")
    try:
        values = parse_json(data.removeprefix(BOM_UTF8), may_be_nan=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: line {data.count(NEW_LINE, 0, error.start) + 1}: is not UTF-8") from error
    except ValueError as error:
        raise DataError(f"{place}: an array that is not JSON, or is cut off: {error}") from error
    for number, row in enumerate(values, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{place}, element {number}: not an object with columns, but {str(row)[:60]!r}")
        yield number, row


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
        unified(before, table.schema)
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
            unified(pa.schema([("", kind)]), pa.schema([("", pa.array(values[:count]).type)]))
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


def unified(*schemas: pa.Schema) -> pa.Schema:
    """The types of columns over several batches; whole numbers and others are numbers."""
    return pa.unify_schemas(schemas, promote_options="permissive")
