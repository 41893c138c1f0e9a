"""Checks from the syntax tree, before it runs, that a text is one SELECT that only reads.

Functions that take SQL or file names as text could bypass this check: ``json_execute_serialized_sql`` did overwrite a
shard. Only functions that are known to be harmless are therefore allowed, those in functions.txt.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import duckdb

from pipeline.errors import QueryError, did_you_mean
from pipeline.sql.database import connect
from pipeline.sql.macros import macros

READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
OWN = "select function_name, function_type = 'table_macro' from duckdb_functions() where not internal"
OF_WORDS = ("calibration", "calibration_error", "confusion", "class_scores")
COLUMNS = "select column_name from duckdb_columns() where lower(table_name) = lower(?)"


def check_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raises QueryError unless the text is one SELECT that only reads; duckdb.Error if it is no SQL at all."""
    kinds = [_kind(statement) for statement in duckdb.extract_statements(sql)]
    if kinds != ["SELECT"]:
        raise QueryError(f"only one SELECT is allowed, but this is: {', '.join(kinds) or 'nothing'}")
    # The tree is searched at every depth: DuckDB accepts COPY inside a WITH, which reads like a SELECT from outside.
    nodes = list(_nodes(_syntax_tree(connection, sql)))
    foreign = sorted({node["type"] for node in nodes if _is_query(node)} - READING_NODES)
    if foreign:
        raise QueryError(f"only SELECT is allowed inside a SELECT, but there is: {', '.join(foreign)}")
    tables = [node["function"] for node in nodes if node.get("type") == "TABLE_FUNCTION"]
    # Identity, not equality: the same call may stand once as a table and once as a value, with different permissions.
    of_tables = set(map(id, tables))
    called = {node["function_name"].lower() for node in nodes if "function_name" in node and id(node) not in of_tables}
    _check_functions(connection, {table.get("function_name", "") for table in tables}, called)
    # A name of a WITH clause hides the view of that name, so the check would look at the wrong set.
    local = {part["key"] for node in nodes for part in node.get("cte_map", {}).get("map", [])}
    questions = [table for table in tables if table["function_name"] not in listed_functions()["tables"]]
    refuse_for_words(connection, questions, local)


def _check_functions(connection: duckdb.DuckDBPyConnection, tables: set[str], values: set[str]) -> None:
    """Raises QueryError for a function that is not known to be harmless, or does not exist.

    Args:
        connection: the database.
        tables: names of called functions that make tables.
        values: names of the others, in lower case.
    """
    # An allowlist, not a blocklist: a new DuckDB version may bring functions that write or read files.
    known_tables = listed_functions()["tables"] | {name for name, macro in macros().items() if macro.makes_table}
    known_values = listed_functions()["values"] | {name for name, macro in macros().items() if not macro.makes_table}
    if tables <= known_tables and values <= known_values:
        return  # Listing the connection's functions would take longer than most queries.
    own = connection.execute(OWN).fetchall()
    known_tables |= {name for name, makes_table in own if makes_table}
    for name in sorted(tables - known_tables):
        raise QueryError(f"the function {name!r} is not allowed. {did_you_mean(name, known_tables)}")
    known_values |= {name.lower() for name, makes_table in own if not makes_table}
    for name in sorted(values - known_values):
        close = " or ".join(map(repr, get_close_matches(name, known_values)))
        raise QueryError(f"there is no function {name!r}, or it is not allowed{close and f'. Did you mean {close}?'}")


@cache
def listed_functions() -> dict[str, set[str]]:
    """Returns the functions of DuckDB that a query may call, as ``values`` and as ``tables``, and the refused ones."""
    sections: dict[str, set[str]] = {}
    for line in files("pipeline.sql").joinpath("functions.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            names = sections.setdefault(line.strip("[]"), set())
        elif line and not line.startswith("#"):
            names.update(name.lower() for name in line.removesuffix(",").split(", "))
    return sections


def first_arguments(sql: str, functions: Collection[str]) -> set[str]:
    """What is first handed to certain functions wherever a SELECT calls them.

    Raises:
        QueryError: if that is not a text in quotes, or the query is not a SELECT.
    """
    if not any(name in sql.lower() for name in functions):
        return set()
    with connect() as connection:
        tree = _syntax_tree(connection, sql)
    calls = [node for node in _nodes(tree) if node.get("function_name") in functions]
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
    except ValueError:  # DuckDB has statement types that its Python enum does not contain
        return "another statement"


def _syntax_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    # All rows, because an unfinished result would block the connection for the query itself.
    [(text,)] = connection.execute("select json_serialize_sql(?)", [sql]).fetchall()
    try:
        tree = json.loads(text)
    except RecursionError as error:
        raise QueryError("the query is nested too deeply. Write it with fewer SELECTs inside each other.") from error
    if tree.get("error") is not False:
        raise QueryError(f"only one SELECT is allowed: {tree.get('error_message', 'it cannot be read')}")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yields every object of a syntax tree."""
    # A stack instead of recursion: a hostile query can nest deeper than Python's recursion limit.
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


def refuse_for_words(
    connection: duckdb.DuckDBPyConnection, questions: Iterable[dict[str, Any]], local: Collection[str]
) -> None:
    """Raises QueryError for a table macro that labelled words do not support.

    Args:
        connection: the database with the views.
        questions: the calls of our own table macros in the syntax tree.
        local: names that the query itself defines (``with name as …``), which may hide a view.
    """
    for call in questions:
        for view in set(_names(call)) - set(local):
            columns = {name for (name,) in connection.execute(COLUMNS, [view]).fetchall()}
            if "words" in columns:
                raise QueryError(_refusal(call, view, "sentences of labelled words", f"{view}_words"))
            if "word" in columns and call["function_name"] not in OF_WORDS:
                raise QueryError(_refusal(call, view, "labelled words", view))


def _refusal(call: dict[str, Any], view: str, rows: str, of_words: str) -> str:
    question, there = call["function_name"], ", ".join(f"{name}({of_words})" for name in OF_WORDS)
    return f"{question}({view}): does not support {rows}, which are in {view}. For its words, use {there}"


def _names(call: dict[str, Any]) -> Iterator[str]:
    """Returns the argument of a macro, given by name or as a text in quotes."""
    for argument in call["arguments"]:
        expression = argument["expression"]
        yield from expression.get("column_names", [])[-1:]
        if expression.get("literal", {}).get("kind") == "STRING":
            yield str(expression["literal"]["text"])
