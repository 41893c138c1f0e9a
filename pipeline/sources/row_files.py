"""The one reader of files of rows: Parquet, Arrow, CSV, TSV, JSON, or a text with a row on each line.

Rows are read in their order, a batch at a time, to save memory. The table `FORMATS` has a function per format, by the
extension of its files in any case. Text may be compressed with gzip, bzip2, xz or Zstandard.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from lzma import LZMAError
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.sources.columns import class_names, named
from pipeline.sources.delimited_rows import QUOTED, UNQUOTED, delimited_names, delimited_tables
from pipeline.sources.hugging_face_rows import row_files
from pipeline.sources.json_rows import (
    array_bytes,
    array_rows,
    array_table,
    count_objects,
    is_array,
    line_names,
    names_of,
    object_tables,
    quick_array,
    unified,
)
from pipeline.sources.line_rows import BEGINNING, LABEL_LISTS, count_lines, has_labels, line_tables, mark_before, marks
from pipeline.sources.row_bytes import codec, ending, foreign_type, not_utf8, open_bytes, refuse_foreign

ROWS_PER_BATCH = 8192
BINARY = (".parquet", ".arrow", ".feather")

Batches = Iterator[pa.Table]


class Naming(NamedTuple):
    """Names of columns in files without names."""

    headerless: tuple[str, ...]  # for a TSV with so many columns and no header
    line: str  # of a text
    label: str  # for fastText's labels


class Opened(NamedTuple):
    """A file of a certain format: its columns (JSON: those of the first rows), and functions that read and count rows.

    ``read`` takes names of columns (None for all), their types, which only JSON needs, and the number of the first row.
    """

    names: list[str]
    read: Callable[[Sequence[str] | None, pa.Schema | None, int], Batches]
    num_rows: Callable[[], int]
    class_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class RowFile:
    """A file of rows.

    Attributes:
        path: the file.
        names: the names of its columns. For JSON, those of the first rows.
        class_names: the names of classes of columns for which the file has them. See `pipeline.sources.columns`.
    """

    path: Path
    names: list[str]
    class_names: Mapping[str, tuple[str, ...]]
    _opened: Opened

    def batches(self, columns: Sequence[str] | None = None, schema: pa.Schema | None = None, start: int = 0) -> Batches:
        """Reads rows in their order, at least one batch.

        Args:
            columns: the columns to read. Default: all.
            schema: their types over all rows. See `joined_schema`. By default, batches of JSON have the types of their
                values and of the batches before.
            start: the number of the first row, from 0. Earlier rows of Parquet and of uncompressed lines are not read.

        Raises:
            DataError: naming the wrong row, line or column.
        """
        counts = Counter(self.names)
        twice = next((name for name in (columns or counts) if counts[name] > 1), None)
        if twice is not None:  # a repeated name would be ambiguous
            raise DataError(f"{self.path}: the column {twice!r} is repeated. Rename or remove one.")
        with reading(self.path):
            yield from self._opened.read(columns, schema, start)

    def count(self) -> int:
        """The number of rows. For lines, the number of those that are not blank, without checking their content."""
        with reading(self.path):
            return self._opened.num_rows()

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Reads all rows at once. See `batches` for errors."""
        with reading(self.path):
            return pa.concat_tables(self.batches(columns), promote_options="permissive")

    def wanted(self, names: Collection[str]) -> pa.Table:
        """Reads all rows at once, only the columns with one of the names. Classes get the file's names.

        Other columns are not read. They appear as nulls, so that messages can name them.
        """
        table = self.table([name for name in self.names if name in names])
        table = named(table, self.class_names, str(self.path))
        for name in dict.fromkeys(self.names):
            table = table if name in names else table.append_column(name, pa.nulls(table.num_rows))
        return table


def open_rows(
    path: Path, headerless_columns: tuple[str, ...] = (), line_column: str = "sentence1", label_column: str = "label"
) -> RowFile:
    """Opens a file of any of the `FORMATS`.

    Args:
        path: the file.
        headerless_columns: names for the columns of a TSV that has no header.
        line_column: name for the column of a text.
        label_column: name for the column of the labels that a text in fastText's format has.

    Raises:
        DataError: if there is no such file, or its content does not match its extension.
    """
    if path.is_dir():
        there = row_files(path, FORMATS)
        raise DataError(f"{path}: is a folder. Give a file of rows" + (f", such as {there[0]}" if there else ""))
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    kind = ending(path)
    if kind not in FORMATS:
        raise DataError(f"{path}: unknown kind of file {kind!r}. {_advice(path)}")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty, without any columns")
    if codec(path) and kind in BINARY:
        raise DataError(
            f"{path}: compressed {kind} files are not supported, because they are read from several positions. "
            "Unpack it first"
        )
    with reading(path):
        refuse_foreign(path, is_text=kind not in BINARY)
        opened = FORMATS[kind](path, Naming(headerless_columns, line_column, label_column))
    return RowFile(path, opened.names, opened.class_names, opened)


def _advice(path: Path) -> str:
    """Returns what to do about a file whose name ends in no known format."""
    foreign = foreign_type(path)
    if foreign is not None:
        return f"It is {foreign}"
    return "Its labels are fastText's, so rename it to .txt" if has_labels(path) else f"Known: {', '.join(FORMATS)}"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns errors while a file is read into a DataError. For text that is not UTF-8, the error names the line."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, LZMAError, UnicodeDecodeError, KeyError) as error:
        if ("UTF8" in str(error) or isinstance(error, UnicodeDecodeError)) and ending(path) not in BINARY:
            raise DataError(f"{path}: {_bad_line(path)}") from error
        what = f"{ending(path)[1:]} file" + (", or its compressed data are truncated" if codec(path) else "")
        raise DataError(f"{path}: not a readable {what}: {str(error).splitlines()[0]}") from error


def joined_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Returns the types of columns over several batches.

    Integers and floats become floats, and only nulls become text.
    """
    schema = unified(*schemas)
    return pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in schema])


def from_row(tables: Iterable[pa.Table], first: int) -> Batches:
    """Yields the rows of tables from a row on, at most `ROWS_PER_BATCH` at a time and at least one table."""
    for table in tables:
        rest = table.slice(min(first, table.num_rows))
        first -= min(first, table.num_rows)
        for start in range(0, max(rest.num_rows, 1), ROWS_PER_BATCH):
            yield rest.slice(start, ROWS_PER_BATCH)


def _parquet(path: Path, naming: Naming) -> Opened:
    def opened() -> pq.ParquetFile:
        # not pre-buffered, so that a large row group is never whole in memory
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)

    def read(columns: Sequence[str] | None, _: pa.Schema | None, start: int) -> Batches:
        file = opened()
        names = file.schema_arrow.names if columns is None else list(columns)
        ends = list(accumulate(file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)))
        skipped = bisect_right(ends, start)
        groups = list(range(skipped, len(ends)))
        batches = file.iter_batches(ROWS_PER_BATCH, groups, columns=None if columns is None else names)
        yield file.schema_arrow.empty_table().select(names)
        tables = (pa.Table.from_batches([batch]).select(names) for batch in batches)
        yield from from_row(tables, start - (ends[skipped - 1] if skipped else 0))

    schema = opened().schema_arrow
    return Opened(schema.names, read, lambda: int(opened().metadata.num_rows), class_names(schema.metadata))


def _csv(path: Path, naming: Naming) -> Opened:
    return _delimited(path, QUOTED, ())


def _tsv(path: Path, naming: Naming) -> Opened:
    return _delimited(path, UNQUOTED, naming.headerless)


def _delimited(path: Path, parse: pc.ParseOptions, headerless: Sequence[str]) -> Opened:
    names, has_header = delimited_names(path, parse, headerless)

    def read(columns: Sequence[str] | None, _: pa.Schema | None, start: int) -> Batches:
        return from_row(delimited_tables(path, parse, names, has_header, columns), start)

    return Opened(names, read, lambda: sum(table.num_rows for table in read(names[:1], None, 0)))


def _text_lines(path: Path, naming: Naming) -> Opened:
    label = naming.label if has_labels(path) else None
    empty = pa.table({naming.line: pa.array([], pa.string())} | ({label: pa.array([], LABEL_LISTS)} if label else {}))
    found = cache(lambda: marks(path, count_lines))

    def read(columns: Sequence[str] | None, _: pa.Schema | None, start: int) -> Batches:
        mark = mark_before(found(), path, start) if start else BEGINNING
        tables = chain([empty], line_tables(path, mark, naming.line, label))
        for table in from_row(tables, start - mark.row):
            yield table if columns is None else table.select(list(columns))

    return Opened(empty.column_names, read, lambda: found()[-1].row)


def _json(path: Path, naming: Naming) -> Opened:
    return _json_array(path) if is_array(path) else _json_lines(path)


def _json_array(path: Path) -> Opened:
    data = array_bytes(path)
    quick = quick_array(data)
    if quick is not None:
        return _whole_table(quick)
    rows = array_rows(path, data)

    def read(columns: Sequence[str] | None, schema: pa.Schema | None, start: int) -> Batches:
        return from_row([array_table(path, rows, columns, schema)], start)

    return Opened(names_of(rows), read, lambda: len(rows))


def _whole_table(table: pa.Table) -> Opened:
    def read(columns: Sequence[str] | None, schema: pa.Schema | None, start: int) -> Batches:
        chosen = table if columns is None else table.select(list(columns))
        return from_row([chosen if schema is None else chosen.select(schema.names).cast(schema)], start)

    return Opened(table.column_names, read, lambda: table.num_rows)


def _json_lines(path: Path) -> Opened:
    found = cache(lambda: marks(path, count_objects))

    def read(columns: Sequence[str] | None, schema: pa.Schema | None, start: int) -> Batches:
        mark = mark_before(found(), path, start) if start else BEGINNING
        return from_row(object_tables(path, mark, columns, schema), start - mark.row)

    return Opened(line_names(path), read, lambda: found()[-1].row)


def _arrow(path: Path, naming: Naming) -> Opened:
    """Opens Arrow's file format, which is also Feather, or its stream format, which `datasets` writes."""

    def batches(open_source: Callable[[str], Any] = pa.OSFile) -> Iterator[pa.RecordBatch]:
        with open_source(str(path)) as source:
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

    def read(columns: Sequence[str] | None, _: pa.Schema | None, start: int) -> Batches:
        tables = (pa.Table.from_batches([batch]) for batch in batches())
        return from_row((table if columns is None else table.select(list(columns)) for table in tables), start)

    # Rows are read into memory: a mapped file that is overwritten in place would end the process. Counts are mapped.
    schema = next(batches()).schema
    count = lambda: sum(batch.num_rows for batch in batches(pa.memory_map))  # noqa: E731
    return Opened(schema.names, read, count, class_names(schema.metadata))


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
    return "is not UTF-8. Save the file as UTF-8"
