"""Rows of JSON: an object on each line, or one array of objects."""

import gc
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from pipeline.errors import DataError
from pipeline.sources.line_rows import Mark, blocks_from
from pipeline.sources.row_bytes import not_utf8, open_bytes, without_bom
from pipeline.untrusted import parse_json

ROWS_LOOKED_AT = 8192  # for the names of columns
NEW_LINE = b"\n"
BLANK = b" \t\r\n"  # in JSON
COMMA_BETWEEN = re.compile(rb"}[ \t\r\n]*,[ \t\r\n]*{")
LARGEST_EXACT = 2.0**53  # of whole numbers in a float
NULL_BETWEEN = re.compile(rb"}\s*n")
MAX_ARRAY_BYTES = 2**31  # limits only arrays, which are in memory as a whole
Numbered = tuple[int, dict[str, Any]]  # the number of a line, or of an array's element, from 1, and its row


def is_array(path: Path) -> bool:
    """Whether a file of JSON is one array, and not an object on each line."""
    with open_bytes(path) as stream:
        first = next((line for line in stream if without_bom(line).strip()), b"")
    return without_bom(first).lstrip().startswith(b"[")


def line_names(path: Path) -> list[str]:
    """Returns the columns of the first objects of a file of JSON lines, in the order of their first occurrence.

    Raises:
        DataError: naming the line that is not an object with columns.
    """
    with open_bytes(path) as stream:
        lines = list(islice(stream, ROWS_LOOKED_AT))
    data = b"".join(lines)
    if num_object_lines(data):
        try:
            return pj.read_json(pa.BufferReader(data), _whole(data)).schema.names  # type: ignore[no-any-return]
        except pa.ArrowException:  # Python finds the problem below
            pass
    return names_of(list(parsed_lines(str(path), enumerate(lines, start=1))))


def names_of(rows: Sequence[Numbered]) -> list[str]:
    """Returns the columns of rows, in the order of their first occurrence."""
    return list(dict.fromkeys(chain.from_iterable(row for _, row in rows)))


def quick_array(data: bytes) -> pa.Table | None:
    """Reads the objects of an array with Arrow. None if Arrow cannot read them reliably.

    Arrow reads objects on lines, so commas between objects are replaced by line ends. If a text contains such a comma,
    the line end within it is an error, and Python reads the array.
    """
    body = memoryview(without_bom(data).strip(BLANK))[1:-1].tobytes().strip(BLANK)
    if not data.rstrip(BLANK).endswith(b"]") or not (body.startswith(b"{") and body.endswith(b"}")):
        return None
    found = COMMA_BETWEEN.search(body)
    comma = b"" if found is None else found[0]
    lines = body.replace(comma, b"}\n{") if comma else body
    if b"null" in lines and NULL_BETWEEN.search(lines):
        return None
    parse = pj.ParseOptions(newlines_in_values=True)
    try:
        table = pj.read_json(pa.BufferReader(lines), _whole(lines), parse)
        dates = [field.with_type(pa.string()) for field in table.schema if pa.types.is_timestamp(field.type)]
        if dates:  # texts that look like separators between objects
            parse = pj.ParseOptions(newlines_in_values=True, explicit_schema=pa.schema(dates))
            table = pj.read_json(pa.BufferReader(lines), _whole(lines), parse).select(table.column_names)
        table.validate(full=True)  # Arrow accepts text that is not UTF-8
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    # Arrow does not require commas between objects
    is_right = table.num_rows == 1 + (body.count(comma) if comma else 0)
    return table if is_right and table.num_columns and all(map(_is_exact, table.columns)) else None


def _is_exact(column: pa.ChunkedArray) -> bool:
    """Whether a column has the type that Python would infer, and no number that lost precision in Arrow."""
    if pa.types.is_floating(column.type):
        return not pc.any(pc.greater_equal(pc.abs(column), LARGEST_EXACT)).as_py()
    return _innermost(column.type) in (pa.int64(), pa.string(), pa.bool_(), pa.null())


def array_table(
    path: Path, rows: Sequence[Numbered], columns: Sequence[str] | None, schema: pa.Schema | None
) -> pa.Table:
    """Returns the objects of an array as a table, with the types and errors of `object_tables`."""
    known = pa.schema([(name, pa.null()) for name in columns or ()])
    return _typed_table(rows, schema) if schema else _inferred_table(str(path), rows, columns, known)


def object_tables(
    path: Path, mark: Mark, columns: Sequence[str] | None, schema: pa.Schema | None
) -> Iterator[pa.Table]:
    """Reads objects on lines as tables, at least one.

    Arrow reads blocks of lines whose types are known and which are valid. Other blocks are read row by row, which takes
    ten times as long but finds new types and wrong lines.

    Args:
        path: the file.
        mark: the start.
        columns: the columns to read. Default: all.
        schema: their types. Default: the types of the values in this block and in earlier ones.

    Raises:
        DataError: naming the line that is not an object with columns, or has a value of another type.
    """
    known = schema or pa.schema([(name, pa.null()) for name in columns or ()])
    is_empty = True
    for line, data in blocks_from(path, mark):
        table = _quick_table(data, known, columns is None and schema is None)
        if table is None:
            rows = list(parsed_lines(str(path), enumerate(data.split(NEW_LINE), start=line)))
            table = _typed_table(rows, schema) if schema else _inferred_table(str(path), rows, columns, known)
        if table.num_rows:
            known = schema or unified(known, table.schema)
            is_empty = False
            yield table
    if is_empty:
        yield known.empty_table()


def count_objects(data: bytes) -> int:
    """Returns how many lines of a block are not blank."""
    return sum(1 for line in data.split(NEW_LINE) if line.strip())


def _quick_table(data: bytes, schema: pa.Schema, takes_all: bool) -> pa.Table | None:
    """Reads a block of lines with Arrow. None if Arrow cannot read it reliably.

    Arrow accepts several objects in a line, and crashes if null stands between objects.
    """
    count = num_object_lines(data)
    if not count or not len(schema) or not all(map(_is_flat, schema.types)):
        return None
    parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error" if takes_all else "ignore")
    try:
        table = pj.read_json(pa.BufferReader(data), _whole(data), parse)
        table.validate(full=True)  # Arrow accepts text that is not UTF-8
    except pa.ArrowException:
        return None
    return table if table.num_rows == count else None


def _whole(data: bytes) -> pj.ReadOptions:
    """Reads all lines at once, so that all have the same types."""
    return pj.ReadOptions(block_size=len(data) + 1, use_threads=False)


def num_object_lines(data: bytes) -> int:
    """Returns the number of lines, or 0 if a line does not begin with an object or contains a null after one."""
    content = np.frombuffer(data, np.uint8)  # `bytes.count` takes several times as long for short lines
    ends = np.flatnonzero(content == ord(NEW_LINE))
    if not data.endswith(NEW_LINE):
        ends = np.append(ends, len(content))
    if not data.startswith(b"{") or not (content[ends[:-1] + 1] == ord("{")).all():
        return 0
    # A line whose only closing brace is at its end has one object and nothing else.
    is_plain = (content[ends - 1] == ord("}")).all() and np.count_nonzero(content == ord("}")) == len(ends)
    return 0 if not is_plain and b"null" in data and NULL_BETWEEN.search(data) else len(ends)


def _is_flat(kind: pa.DataType) -> bool:
    """Whether a type has no nested columns, of which some might be ignored."""
    kind = _innermost(kind)
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_null(kind))


def _innermost(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values of lists of any depth."""
    return _innermost(kind.value_type) if pa.types.is_list(kind) else kind


def parsed_lines(place: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Numbered]:
    """Yields the objects on the lines of JSON that are not blank, with the numbers of the lines.

    Raises:
        DataError: if a line is something else, naming it.
    """
    for number, line in lines:
        if line.strip():
            try:
                row = parse_json(without_bom(line), may_be_nan=True)  # Python and pandas write NaN
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: line {number}: {not_utf8(line, error)}") from error
            except ValueError as error:
                raise DataError(f"{place}, line {number}: {_not_json(line, error)}") from error
            if not isinstance(row, dict):
                raise DataError(f"{place}, line {number}: not an object with columns, but {str(row)[:60]!r}")
            yield number, row


def _not_json(line: bytes, error: ValueError) -> str:
    """Returns the problem of a line that is not JSON, with the remedy for common reasons."""
    text = line.strip()
    if text.endswith(b","):
        return "ends with a comma. Give an object on each line without commas, or all of them in [ ]"
    if text in (b"{", b"[") or (text.startswith(b"{") and not text.endswith(b"}")):
        return "an object that continues on the next line or is truncated. Give each on one line, or all in [ ]"
    return f"not JSON: {error}"


def array_rows(path: Path, data: bytes) -> list[Numbered]:
    """Returns the objects of an array, with their numbers from 1.

    Args:
        path: the file, for messages.
        data: its bytes.

    Raises:
        DataError: if the file is not an array, or naming the element that is not an object with columns.
    """
    try:
        with without_collector():
            values = parse_json(without_bom(data), may_be_nan=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: line {data.count(NEW_LINE, 0, error.start) + 1}: is not UTF-8") from error
    except ValueError as error:
        if "Extra data" in str(error):
            raise DataError(
                f"{path}, line 1: a line with an array, whose values have no names. Write an object with "
                "columns on each line."
            ) from error
        raise DataError(f"{path}: an array that is not JSON, or is truncated: {error}") from error
    wrong = next((number for number, row in enumerate(values, start=1) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise DataError(f"{path}, element {wrong}: not an object with columns, but {str(values[wrong - 1])[:60]!r}")
    with without_collector():
        return list(enumerate(values, start=1))


def array_bytes(path: Path) -> bytes:
    """Returns the decompressed bytes of an array's file. Raises DataError if they are too many."""
    with open_bytes(path) as stream:
        data = stream.read(MAX_ARRAY_BYTES + 1)
    if len(data) > MAX_ARRAY_BYTES:
        raise DataError(f"{path}: an array of more than 2 GiB. Write an object on each line, which needs little memory")
    return data


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables Python's garbage collector, which would visit many new objects repeatedly.

    JSON has no cycles. The collector took half of the time for an array of 100,000 objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _typed_table(rows: Sequence[Numbered], schema: pa.Schema) -> pa.Table:
    return pa.table({field.name: pa.array([row.get(field.name) for _, row in rows], field.type) for field in schema})


def _inferred_table(place: str, rows: Sequence[Numbered], columns: Sequence[str] | None, before: pa.Schema) -> pa.Table:
    """Returns rows of JSON as a table. Missing values are null.

    Args:
        place: the file, for messages.
        rows: objects, and the line of each.
        columns: the columns to keep. Default: all.
        before: the types in earlier rows, which these rows have to fit.

    Raises:
        DataError: if values of a column are of different types, naming the line.
    """
    names = dict.fromkeys(columns if columns is not None else (name for _, row in rows for name in row))
    try:
        table = pa.table({name: pa.array([row.get(name) for _, row in rows]) for name in names})
        unified(before, table.schema)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        odd = (_odd_value(place, rows, name, before) for name in names)
        raise DataError(next(filter(None, odd), f"{place}: {error}")) from error
    return table


def _odd_value(place: str, rows: Sequence[Numbered], name: str, before: pa.Schema) -> str | None:
    """Returns the first value of a column that does not fit the values before, as a problem, or None."""
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
        f"{place}, line {rows[bad][0]}: {name!r} is {values[bad]!r:.80}, which does not have the type of the "
        f"rows before{wanted}. A column has one type"
    )


def unified(*schemas: pa.Schema) -> pa.Schema:
    """Returns the types of columns over several batches. Integers and floats become floats."""
    return pa.unify_schemas(schemas, promote_options="permissive")
