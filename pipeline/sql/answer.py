"""What a query has answered: as Python values, or streamed into a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from pipeline.errors import QueryError
from pipeline.files import write_alone
from pipeline.sql.gate import query_errors, to_arrow

Row = tuple[Any, ...]


def fetch_rows(relation: duckdb.DuckDBPyRelation) -> list[Row]:
    """All rows as Python values.

    Raises:
        QueryError: if the query fails, or a value has no counterpart in Python.
    """
    table = to_arrow(relation)
    try:
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    except (ValueError, OverflowError) as error:  # dates and intervals that Python has not
        raise QueryError(f"the answer cannot be shown: {error}; cast the column to text: column::varchar") from error


def as_dicts(columns: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows by their columns' names, to be written as JSON."""
    return [dict(zip(columns, map(with_hex, row), strict=True)) for row in rows]


def with_hex(value: Any) -> Any:
    """A value with hexadecimal digits in place of bytes, at any depth, as JSON and CSV have none."""
    if isinstance(value, list | tuple):
        return [with_hex(part) for part in value]
    if isinstance(value, dict):
        return {name: with_hex(part) for name, part in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def write_parquet(path: Path, relation: duckdb.DuckDBPyRelation) -> None:
    """Streams the rows to a file, by our own hand: the query itself must not write.

    Raises:
        QueryError: if the query fails.
        DataError: if the file cannot be written.
    """

    def write(temporary: Path) -> None:
        reader = relation.to_arrow_reader()
        with pq.ParquetWriter(temporary, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)

    with query_errors():
        write_alone(path, write)
