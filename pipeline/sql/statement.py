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
    nodes = list(_nodes(_syntax_tree(sql)))
    foreign = sorted({node["type"] for node in nodes if _is_query(node)} - READING_NODES)
    if foreign:
        raise QueryError(f"only SELECT is allowed inside a SELECT, but there is: {', '.join(foreign)}")
    own = connection.execute(OWN).fetchall()
    tables = [node["function"] for node in nodes if node.get("type") == "TABLE_FUNCTION"]
    # An allowlist, not a blocklist: a new DuckDB version may bring functions that write or read files.
    known = listed_functions()["tables"] | {name for name, makes_table in own if makes_table}
    for name in sorted({table.get("function_name", "") for table in tables} - known):
        raise QueryError(f"the function {name!r} is not allowed. {did_you_mean(name, known)}")
    # Identity, not equality: the same call may stand once as a table and once as a value, with different permissions.
    of_tables = set(map(id, tables))
    called = {node["function_name"].lower() for node in nodes if "function_name" in node and id(node) not in of_tables}
    known = listed_functions()["values"] | {name.lower() for name, makes_table in own if not makes_table}
    for name in sorted(called - known):
        close = " or ".join(map(repr, get_close_matches(name, known)))
        raise QueryError(f"there is no function {name!r}, or it is not allowed{close and f'. Did you mean {close}?'}")
    # A name of a WITH clause hides the view of that name, so the check would look at the wrong set.
    local = {part["key"] for node in nodes for part in node.get("cte_map", {}).get("map", [])}
    questions = [table for table in tables if (table["function_name"], True) in own]
    refuse_for_words(connection, questions, local)


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
    except ValueError:  # DuckDB has statement types that its Python enum does not contain
        return "another statement"


def _syntax_tree(sql: str) -> Any:
    with connect() as connection:
        row = connection.execute("select json_serialize_sql(?)", [sql]).fetchone()
    try:
        tree = json.loads(row[0]) if row else {}
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
