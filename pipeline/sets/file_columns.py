"""Columns of the user's files that a set shows beside its rows, such as the number of a ticket.

They are in a file of the set's folder that stays on this machine: the record does not list it, and `push` does not
upload it, because such columns often identify people. Their names begin with ``file_``, so that they differ from all
others.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrays import Ints
from pipeline.errors import ConfigError, DataError, DistillError, did_you_mean
from pipeline.files import is_plain, make_folder, write_atomically
from pipeline.parquet import read_metadata
from pipeline.text.near_copies import groups_of_values

FILE = "file_columns/rows.parquet"
PREFIX = "file_"
KEYS = {"split": pa.string(), "source_row": pa.int64()}
Row = dict[str, Any]


def write_file_columns(root: Path, kept: Mapping[str, pa.Table]) -> None:
    """Writes the kept columns of a task's splits into the folder of a set, if there are any."""
    if not kept:
        return
    tables = []
    for split, table in kept.items():
        names = [name if name.startswith(PREFIX) else PREFIX + name for name in table.column_names]
        keys = [pa.array([split] * table.num_rows, pa.string()), pa.array(range(table.num_rows), pa.int64())]
        # Nulls alone have no type, so that a column may have its values in another split.
        columns = [pa.nulls(len(one)) if one.null_count == len(one) else one for one in table.columns]
        tables.append(pa.table([*keys, *columns], [*KEYS, *names]))
    make_folder((root / FILE).parent)
    try:
        rows = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"keep: a column has another type in each split: {error}. Remove it from the manifest"
        ) from error
    write_atomically(root / FILE, partial(pq.write_table, rows))


def file_column_names(root: Path) -> list[str]:
    """Returns the names of the kept columns of a set. None of a file that is not one of ours."""
    if not is_plain(root / FILE):
        return []
    try:
        schema = read_metadata(root / FILE).schema.to_arrow_schema()
    except (DistillError, OSError, pa.ArrowException):
        return []
    names = schema.names[len(KEYS) :]
    is_ours = schema.names[: len(KEYS)] == list(KEYS) and schema.types[: len(KEYS)] == list(KEYS.values())
    return names if is_ours and all(name.startswith(PREFIX) for name in names) else []


def groups_by_file_column(root: Path, split: str, name: str) -> Ints:
    """Returns the number of each source row's group with the same value in a kept column [N].

    Raises:
        ConfigError: if the set keeps no such column.
    """
    column = name if name.startswith(PREFIX) else PREFIX + name
    known = file_column_names(root)
    if column not in known:
        there = did_you_mean(name, [one.removeprefix(PREFIX) for one in known])
        raise ConfigError(f"--group {name}: {root} keeps no such column on this machine. {there}")
    rows = pq.read_table(root / FILE, filters=[("split", "=", split)], partitioning=None).sort_by("source_row")
    return groups_of_values(rows.column(column).combine_chunks())


def with_file_columns(root: Path, split: str, rows: list[Row]) -> list[Row]:
    """Returns rows of a set, each with a ``source_row``, with the kept columns."""
    if not rows or not file_column_names(root):
        return rows
    wanted = [("split", "=", split), ("source_row", "in", [row["source_row"] for row in rows])]
    found = {
        row["source_row"]: row for row in pq.read_table(root / FILE, filters=wanted, partitioning=None).to_pylist()
    }
    return [row | {k: v for k, v in found.get(row["source_row"], {}).items() if k not in KEYS} for row in rows]
