"""Read-only SQL over named files.

DuckDB's own settings do not make a folder read-only: with file access limited to it, ``COPY`` and
``EXPLAIN ANALYZE COPY`` still overwrote a shard, and so did ``WITH t AS (COPY …) SELECT 1``. So exactly one SELECT with
nothing but SELECT inside is let through, exactly the files of the views can be read, and the settings are locked. It
guards against accidents and curious queries; it is not a sandbox for hostile files (DuckDB's authors advise the
operating system's for that).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pipeline.errors import QueryError

TIMEOUT_S = 600
READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
LOCKED_DOWN: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "max_execution_time": TIMEOUT_S * 1000,
}


@contextmanager
def open_files(
    views: Mapping[str, Sequence[Path]], columns: Mapping[str, str] | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a locked in-memory database with one view per group of Parquet files, and the macros.

    Args:
        views: the files of each view.
        columns: what a view selects of its files, where that is not ``*``.
    """
    connection = duckdb.connect(config=LOCKED_DOWN)
    try:
        add_macros(connection)
        try:
            for name, paths in views.items():
                create_view(connection, name, paths, (columns or {}).get(name, "*"))
        except duckdb.Error as error:
            raise query_error(error) from error
        lock(connection, [path for paths in views.values() for path in paths])
        yield connection
    finally:
        connection.close()


@contextmanager
def open_database(path: Path, readable: Sequence[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a database file read-only and locked; its views may read the given files and no others."""
    connection = duckdb.connect(str(path), read_only=True, config=LOCKED_DOWN)
    try:
        lock(connection, readable)
        yield connection
    finally:
        connection.close()


def add_macros(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates the macros over logits (macros.sql) and over the rows of a set (analyses.sql)."""
    connection.execute(macros())


def macros() -> str:
    """The statements that create the macros."""
    folder = files("pipeline.sql")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("macros.sql", "analyses.sql"))


def create_view(connection: duckdb.DuckDBPyConnection, name: str, paths: Sequence[Path], columns: str = "*") -> None:
    """Creates a view over Parquet files, by their absolute paths."""
    listed = ", ".join(quoted(path) for path in paths)
    connection.execute(f'create or replace view "{name}" as select {columns} from read_parquet([{listed}])')  # noqa: S608


def lock(connection: duckdb.DuckDBPyConnection, readable: Sequence[Path]) -> None:
    """Leaves the connection able to read the given files and nothing else, for good."""
    connection.execute(f"set allowed_paths=[{', '.join(quoted(path) for path in readable)}]")
    connection.execute("set enable_external_access=false")
    connection.execute("set lock_configuration=true")


def select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """Runs one SELECT.

    Raises:
        QueryError: if it is anything else, or fails.
    """
    try:
        statements = duckdb.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(str(s.type).rpartition(".")[2] for s in statements) or "nothing"
            raise QueryError(f"only one SELECT is allowed, but this is: {kinds}")
        foreign = sorted(_query_nodes(_syntax_tree(sql)) - READING_NODES)
        if foreign:
            raise QueryError(f"only SELECT is allowed inside a SELECT, but there is: {', '.join(foreign)}")
        return connection.sql(sql)
    except duckdb.Error as error:
        raise query_error(error) from error


def to_arrow(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """Fetches all rows; a query runs, and may fail, only now.

    Raises:
        QueryError: if it fails.
    """
    try:
        return relation.to_arrow_table()
    except duckdb.Error as error:
        raise query_error(error) from error


def first_row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...] | None:
    """The first row of a query of ours, or None if there is none."""
    rows = connection.execute(sql).fetchall()  # a result that is not fetched to its end blocks the connection
    return rows[0] if rows else None


def check_condition(condition: str) -> None:
    """Raises QueryError unless the text is one SQL expression."""
    try:
        duckdb.SQLExpression(condition)
    except duckdb.Error as error:
        raise QueryError(f"not a SQL condition: {condition!r}: {str(error).strip()}") from error


def query_error(error: duckdb.Error) -> QueryError:
    """DuckDB's message as one of ours."""
    return QueryError(f"the query failed: {str(error).strip()}")


def _syntax_tree(sql: str) -> Any:
    with duckdb.connect() as connection:
        row = connection.execute("select json_serialize_sql(?)", [sql]).fetchone()
    tree = json.loads(row[0]) if row else {}
    if tree.get("error") is not False:
        raise QueryError(f"only one SELECT is allowed: {tree.get('error_message', 'it cannot be read')}")
    return tree


def _query_nodes(tree: Any) -> set[str]:
    """The kinds of statement in a syntax tree: DuckDB names them ``…_NODE``."""
    if isinstance(tree, list):
        return set().union(*map(_query_nodes, tree))
    if not isinstance(tree, dict):
        return set()
    kind = tree.get("type")
    own = {kind} if isinstance(kind, str) and kind.endswith("_NODE") else set()
    return own.union(*map(_query_nodes, tree.values()))


def quoted(path: Path) -> str:
    """A path as a SQL string."""
    return "'" + str(path.resolve()).replace("'", "''") + "'"
