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
    """Rows by their columns' names; of bytes the hexadecimal digits, which JSON can hold."""
    return [
        {name: value.hex() if isinstance(value, bytes) else value for name, value in zip(columns, row, strict=True)}
        for row in rows
    ]


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
