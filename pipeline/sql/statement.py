"""Is a text one SELECT that only reads? Told from its syntax tree, before it runs.

Functions that take SQL or files as text would carry past this what it refuses: ``json_execute_serialized_sql`` did
overwrite a shard. So of the functions that make tables only those that are known to be harmless are let through.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

import duckdb

from pipeline.errors import QueryError, did_you_mean

READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
TABLE_FUNCTIONS = {
    *("duckdb_columns", "duckdb_functions", "duckdb_tables", "duckdb_views", "pragma_table_info"),
    *("generate_series", "histogram", "histogram_values", "json_each", "json_tree", "query_table"),
    *("range", "repeat", "unnest"),
}
REFUSED_FUNCTIONS = {"sleep_ms", "pg_sleep", "write_log"}  # the first two outlast the limit of time


def check_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QueryError unless the text is one SELECT that only reads; duckdb.Error if it is no SQL at all."""
    kinds = [_kind(statement) for statement in duckdb.extract_statements(sql)]
    if kinds != ["SELECT"]:
        raise QueryError(f"only one SELECT is allowed, but this is: {', '.join(kinds) or 'nothing'}")
    nodes = list(_nodes(_syntax_tree(sql)))
    foreign = sorted({node["type"] for node in nodes if _is_query(node)} - READING_NODES)
    if foreign:
        raise QueryError(f"only SELECT is allowed inside a SELECT, but there is: {', '.join(foreign)}")
    called = {node["function_name"] for node in nodes if "function_name" in node}
    tables = {node["function"].get("function_name", "") for node in nodes if node.get("type") == "TABLE_FUNCTION"}
    known = TABLE_FUNCTIONS | _own_table_macros(connection)
    for name in sorted((tables - known) | (called & REFUSED_FUNCTIONS)):
        raise QueryError(f"the function {name!r} is not allowed; {did_you_mean(name, known)}")


def first_arguments(sql: str, functions: Collection[str]) -> set[str]:
    """What is first handed to certain functions wherever a SELECT calls them.

    Raises:
        QueryError: if that is not a text in quotes, or this is no SELECT.
    """
    if not any(name in sql.lower() for name in functions):
        return set()
    calls = [node for node in _nodes(_syntax_tree(sql)) if node.get("function_name") in functions]
    return {_first_argument(call) for call in calls}


def _first_argument(call: dict[str, Any]) -> str:
    first = call["arguments"][0]["expression"] if call["arguments"] else {}
    literal = first.get("literal", {})
    if literal.get("kind") != "STRING":
        name = call["function_name"]
        raise QueryError(f"{name}: its first argument must be a folder in quotes, like {name}('runs/mnli', …)")
    return str(literal["text"])


def _kind(statement: duckdb.Statement) -> str:
    try:
        return str(statement.type).rpartition(".")[2]
    except ValueError:  # DuckDB has kinds of statement that its Python package has no name for
        return "another statement"


def _syntax_tree(sql: str) -> Any:
    with duckdb.connect() as connection:
        row = connection.execute("select json_serialize_sql(?)", [sql]).fetchone()
    try:
        tree = json.loads(row[0]) if row else {}
    except RecursionError as error:
        raise QueryError("the query is nested too deeply; write it with fewer SELECTs inside each other") from error
    if tree.get("error") is not False:
        raise QueryError(f"only one SELECT is allowed: {tree.get('error_message', 'it cannot be read')}")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a syntax tree."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _is_query(node: dict[str, Any]) -> bool:
    """Whether a node is a statement: DuckDB names them ``…_NODE``."""
    kind = node.get("type")
    return isinstance(kind, str) and kind.endswith("_NODE")


def _own_table_macros(connection: duckdb.DuckDBPyConnection) -> set[str]:
    query = "select function_name from duckdb_functions() where function_type = 'table_macro' and not internal"
    return {name for (name,) in connection.execute(query).fetchall()}
