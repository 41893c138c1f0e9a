"""Connections to DuckDB, the SQL names of sets, and the macros in macros.sql and analyses.sql."""

import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from pipeline.errors import PASSING
from pipeline.tasks.target import Target, TargetKind

BEGINNING = re.compile(r"^create or replace macro (\w+)", re.MULTILINE)
MAKES_A_TABLE = re.compile(r"\) as table\b")


def connect(path: str = ":memory:", **options: Any) -> duckdb.DuckDBPyConnection:
    """Returns a connection to a database in memory or in a file. See `duckdb.connect` for ``options``.

    Raises:
        OSError: if the process cannot open more files. DuckDB itself could abort the process there without a message.
    """
    # Opening any file first raises EMFILE as an ordinary Python error, before DuckDB's native code meets it.
    Path(os.devnull).open("rb").close()
    return duckdb.connect(path, **options)


def disk_error(error: duckdb.Error) -> OSError | None:
    """Returns the system error that a DuckDB message contains in words, such as a full disk, otherwise None."""
    message = str(error)
    code = next((code for code in sorted(PASSING) if os.strerror(code) in message), None)
    return None if code is None else OSError(code, os.strerror(code))


def view_name(set_name: str) -> str:
    """Returns the SQL name of a set: its own name, with underscores for characters that would need quotes."""
    return "".join(c if c.isalnum() else "_" for c in set_name.lower())


def words_view_name(set_name: str) -> str:
    """Returns the SQL name of the view in words of a set of tokens, or by word of a set of words."""
    return f"{view_name(set_name)}_words"


def variants_view_name(set_name: str) -> str:
    """Returns the SQL name of the view of a set's augmented rows, each with its original row."""
    return f"{view_name(set_name)}_variants"


def token_vectors_view_name(set_name: str) -> str:
    """Returns the SQL name of the view of a set's token vectors."""
    return f"{view_name(set_name)}_token_vectors"


class Macro(NamedTuple):
    """One macro.

    Attributes:
        statement: the SQL that creates it.
        makes_table: whether it is a table, and not a value.
    """

    statement: str
    makes_table: bool


@cache
def macros() -> dict[str, Macro]:
    """Returns the macros by their names, in the order of the files."""
    folder = files("pipeline.sql")
    text = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("macros.sql", "analyses.sql"))
    starts = [*BEGINNING.finditer(text)]
    ends = [start.start() for start in starts[1:]] + [len(text)]
    statements = {start[1]: text[start.start() : end] for start, end in zip(starts, ends, strict=True)}
    return {name: Macro(sql, MAKES_A_TABLE.search(sql) is not None) for name, sql in statements.items()}


def add_macros(connection: duckdb.DuckDBPyConnection, query: str | None = None) -> None:
    """Creates all macros, or those that a query may call.

    DuckDB reads the statements of all of them in 50 milliseconds, which is longer than most queries take.
    """
    names = macros() if query is None else _named(query)
    connection.execute("".join(macros()[name].statement for name in macros() if name in names))


def _named(sql: str) -> set[str]:
    """Returns the macros whose names occur in SQL, and those that these call."""
    found: set[str] = set()
    new = macros().keys() & _words(sql)
    while new:
        found |= new
        new = set().union(*((macros().keys() & _words(macros()[name].statement)) for name in new)) - found
    return found


def _words(sql: str) -> set[str]:
    # Names of functions have no case in SQL.
    return set(re.findall(r"\w+", sql.lower()))


class TargetMacros(NamedTuple):
    """Names of the macros for one meaning of logits.

    Attributes:
        answer: the macro for the prediction of a row of logits.
        kl: the macro for the divergence of two rows of logits.
        mix: the macro for the mixture of several teachers' logits.
    """

    answer: str = "argmax"
    kl: str = "kl"
    mix: str = "mix"


MACROS: dict[TargetKind, TargetMacros] = {"labels": TargetMacros("likely_labels", "label_kl", "mix_labels")}


def macros_of(target: Target) -> TargetMacros:
    """Returns the macros for the logits of a target."""
    return MACROS.get(target.kind, TargetMacros())
