"""Read-only SQL over named files.

DuckDB's own settings do not make a folder read-only: with file access limited to it, ``COPY`` and
``EXPLAIN ANALYZE COPY`` still overwrote a shard, and so did ``WITH t AS (COPY …) SELECT 1``. So exactly one SELECT that
only reads is let through, exactly the files of the views can be read, and the settings are locked. It guards against
accidents and curious queries; it is not a sandbox for hostile files (DuckDB's authors advise the operating system's).

The syntax tree is checked before a query runs. Functions that take SQL or file names as text could bypass this check:
``json_execute_serialized_sql`` did overwrite a shard. So only the harmless functions in functions.txt are allowed.

The result of a query is Arrow, Python values, or a file.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import QueryError, did_you_mean
from pipeline.files import write_alone
from pipeline.interrupts import interrupting
from pipeline.sql.database import add_macros, connect, macros, view_name
from pipeline.sql.label_order import check_label_order, mentions
from pipeline.untrusted import string_problem

READING_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
OWN = "select function_name, function_type = 'table_macro' from duckdb_functions() where not internal"
OF_WORDS = ("calibration", "calibration_error", "confusion", "class_scores")
COLUMNS = "select column_name from duckdb_columns() where lower(table_name) = lower(?)"
DEEPEST = 900  # objects and lists inside each other, as many as Python 3.11 reads
TIMEOUT_S = 600
OF_A_FUNCTION = re.compile(r".*Python exception occurred while executing the UDF: \w+: ", re.DOTALL)
# Only the beginning is kept: DuckDB's own suggestions would name internal tables.
NO_TABLE = re.compile(r"Catalog Error: Table with name (.+?) does not exist", re.DOTALL)
VIEWS = "select view_name from duckdb_views() where not internal"
RESERVED = "select keyword_name from duckdb_keywords() where keyword_category = 'reserved'"
LOCKED_DOWN: dict[str, str | bool | int | float | list[str]] = {
    # Extensions are native code, and DuckDB would download them at the mention of a function or a URL.
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    # Otherwise a query could read any pandas or Arrow variable of the calling Python program by its name.
    "python_enable_replacements": False,
    # Without a folder to spill to, a query cannot fill the disk: it fails at the memory limit.
    "temp_directory": "",
    # Half of the machine's memory: the other half is for the rows of the result and for other programs.
    "memory_limit": "50%",
    "max_execution_time": TIMEOUT_S * 1000,
}
Row = tuple[Any, ...]
Labels = Mapping[str, Sequence[str]]
NO_LABELS: Labels = {}


def check_select(connection: duckdb.DuckDBPyConnection, sql: str, runs: Labels = NO_LABELS) -> None:
    """Raises QueryError unless the text is one SELECT that only reads; duckdb.Error if it is no SQL at all.

    Args:
        connection: the database.
        sql: the text.
        runs: the labels of the students that it calls.
    """
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
    mentioned = mentions(nodes)
    known = mentioned._replace(tables=[name for name in mentioned.tables if name not in local])
    check_label_order(connection, known, runs)


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
        is_too_deep = _depth(tree) > DEEPEST  # Python 3.12 and later read deeper trees than 3.11
    except RecursionError:
        is_too_deep = True
    if is_too_deep:
        raise QueryError("the query is nested too deeply. Write it with fewer SELECTs inside each other.")
    if tree.get("error") is not False:
        raise QueryError(f"only one SELECT is allowed: {tree.get('error_message', 'it cannot be read')}")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    # A stack instead of recursion: a hostile query can nest deeper than Python's recursion limit.
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _depth(tree: Any) -> int:
    """Returns how many objects and lists are inside each other."""
    level, depth = [tree], 0
    while level:
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level, depth = [one for part in parts for one in part if isinstance(one, dict | list)], depth + 1
    return depth


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


@contextmanager
def open_files(
    views: Mapping[str, Sequence[Path]], columns: Mapping[str, str] | None = None, query: str | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a locked in-memory database with one view per group of Parquet files, and the macros.

    Args:
        views: the files of each view.
        columns: what a view selects from its files, if not ``*``.
        query: SQL that names all macros that will be called, if it is known. Opening is faster without the others.
    """
    columns = columns or {}
    connection = connect(config=LOCKED_DOWN)
    try:
        add_macros(connection, query if query is None else " ".join([query, *columns.values()]))
        with query_errors():
            for name, paths in views.items():
                create_view(connection, name, paths, columns.get(name, "*"))
        lock(connection, [path for paths in views.values() for path in paths])
        with interrupting(connection.interrupt):
            yield connection
    finally:
        connection.close()


@contextmanager
def open_database(path: Path, readable: Sequence[Path]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a database file read-only and locked. Its views can read only the given files."""
    connection = connect(str(path), read_only=True, config=LOCKED_DOWN)
    try:
        lock(connection, readable)
        yield connection
    finally:
        connection.close()


def create_view(connection: duckdb.DuckDBPyConnection, name: str, paths: Sequence[Path], columns: str = "*") -> None:
    """Creates a view over Parquet files, by their absolute paths."""
    connection.execute(f'create or replace view "{name}" as select {columns} from {parquet(paths)}')  # noqa: S608


def lock(connection: duckdb.DuckDBPyConnection, readable: Sequence[Path]) -> None:
    """Restricts the connection permanently to reading the given files."""
    # The order matters: the paths and the progress bar cannot be set any more once access and configuration are locked.
    connection.execute(f"set allowed_paths=[{', '.join(quoted(path.resolve()) for path in readable)}]")
    # The bar would mix with results on stdout.
    connection.execute("set enable_progress_bar=false")
    connection.execute("set enable_external_access=false")
    connection.execute("set lock_configuration=true")


def select(connection: duckdb.DuckDBPyConnection, sql: str, runs: Labels = NO_LABELS) -> duckdb.DuckDBPyRelation:
    """Returns the result of one SELECT, before its rows are fetched.

    Args:
        connection: the database.
        sql: the SELECT.
        runs: the labels of the students that it calls, by the names in the query.

    Raises:
        QueryError: if it is anything else, or fails.
    """
    _check_text(sql)
    with query_errors():
        try:
            check_select(connection, sql, runs)
            return connection.sql(sql)
        except duckdb.ParserException as error:
            raise QueryError(f"{_query_error(error)}{_names_to_quote(connection, sql)}") from error
        except duckdb.CatalogException as error:
            absent = NO_TABLE.match(str(error))
            if absent is None:
                raise
            views = [name for (name,) in connection.execute(VIEWS).fetchall()]
            raise QueryError(f"the query failed: {absent[0]}. {did_you_mean(absent[1], views)}") from error


def to_arrow(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """Fetches all rows. A query runs, and may fail, only now.

    Raises:
        QueryError: if it fails.
    """
    with query_errors():
        return relation.to_arrow_table()


def first_row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...] | None:
    """Returns the first row of one of our own queries, or None."""
    # An unfinished result would block the connection for the next query.
    rows = connection.execute(sql).fetchall()
    return rows[0] if rows else None


def check_condition(condition: str) -> None:
    """Raises QueryError unless the text is one SQL expression."""
    _check_text(condition)
    try:
        # DuckDB's own parser decides: text such as "true) or (1=1" or "true; drop table" is not a single expression.
        duckdb.SQLExpression(condition)
    except duckdb.Error as error:
        raise QueryError(f"not a SQL condition: {condition!r}: {str(error).strip()}") from error


def _check_text(sql: str) -> None:
    problem = string_problem(sql)
    if problem is not None:
        raise QueryError(f"the query {problem}")


@contextmanager
def query_errors() -> Iterator[None]:
    """Turns DuckDB's errors into ours, and its RuntimeError after Ctrl-C back into KeyboardInterrupt."""
    try:
        yield
    except duckdb.Error as error:
        raise _query_error(error) from error
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


def _query_error(error: duckdb.Error) -> QueryError:
    """Returns DuckDB's message as one of ours, without its advice on locked settings."""
    # Ctrl-C raises a RuntimeError instead, so an interrupt here can only be the time limit.
    if isinstance(error, duckdb.InterruptException):
        return QueryError(f"the query took longer than {TIMEOUT_S} seconds. Select fewer rows, or only one split")
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(
            "the query needs more than half of this machine's memory. Select fewer rows or columns, or only one split"
        )
    # Errors in our own Python functions begin with DuckDB's preamble. Users need only the message inside.
    message = OF_A_FUNCTION.sub("", str(error)).strip()
    if isinstance(error, duckdb.ConversionException) and "label" in message:
        message += (
            "\nLabels are numbers, from 0, in the order of the task's labels. label_name(SET, label) returns their name"
        )
    return QueryError(f"the query failed: {message}")


def _names_to_quote(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Returns advice for an invalid query with names of sets whose views have other names or are SQL keywords."""
    views = {name for (name,) in connection.execute(VIEWS).fetchall()}
    reserved = {name for (name,) in connection.execute(RESERVED).fetchall()}
    named = {word: view_name(word) for word in re.findall(r"[\w.-]+", sql) if view_name(word) in views}
    strange = {n: w for w, n in named.items() if n != w.lower() or n in reserved or n[0].isdigit()}
    return "".join(f'\nIn SQL the set {word} is called "{name}", with the quotes' for name, word in strange.items())


def parquet(paths: Sequence[Path]) -> str:
    """Returns SQL for the rows of Parquet files. By default, DuckDB would turn ``label=1`` in a path into a column."""
    return f"read_parquet([{', '.join(quoted(path.resolve()) for path in paths)}], hive_partitioning = false)"


def quoted(value: object) -> str:
    """Returns a name or a path as a SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def fetch_rows(relation: duckdb.DuckDBPyRelation) -> list[Row]:
    """Returns all rows as Python values.

    Raises:
        QueryError: if the query fails, or a value has no counterpart in Python.
    """
    table = to_arrow(relation)
    try:
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    except (ValueError, OverflowError) as error:  # dates and intervals outside Python's range
        raise QueryError(f"the result cannot be shown: {error}. Cast the column to text: column::varchar.") from error


def as_dicts(columns: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns rows by the names of their columns for JSON. See `distinct` for the names."""
    names = distinct(columns)
    return [dict(zip(names, map(with_hex, row), strict=True)) for row in rows]


def distinct(columns: Sequence[str]) -> list[str]:
    """Returns names of columns. The second ``a`` becomes ``a_1``, as in DuckDB."""
    names = list(columns)
    for place, name in enumerate(names):
        if name in names[:place]:  # Otherwise one value would silently replace the other.
            names[place] = next(new for k in itertools.count(1) if (new := f"{name}_{k}") not in names)
    return names


def with_hex(value: Any) -> Any:
    """Returns a value with hexadecimal digits in place of bytes at any depth, because JSON and CSV have no bytes."""
    if isinstance(value, list | tuple):
        return [with_hex(part) for part in value]
    if isinstance(value, dict):
        return {name: with_hex(part) for name, part in value.items()}
    return value.hex() if isinstance(value, bytes) else value


def write_parquet(path: Path, relation: duckdb.DuckDBPyRelation) -> None:
    """Streams the rows to a file in our own code, because the query itself must not write.

    Raises:
        QueryError: if the query fails.
        DataError: if the file cannot be written.
    """

    def write(temporary: Path) -> None:
        reader = relation.to_arrow_reader()
        names = distinct(reader.schema.names)  # pyarrow cannot read a file with two columns of one name
        schema = pa.schema([field.with_name(name) for name, field in zip(names, reader.schema, strict=True)])
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch.rename_columns(names))

    with query_errors():
        write_alone(path, write)
