"""The macros over logits (macros.sql) and over the rows of a set (analyses.sql)."""

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import duckdb

from pipeline.tasks.target import Target, TargetKind

BEGINNING = re.compile(r"^create or replace macro (\w+)", re.MULTILINE)
MAKES_A_TABLE = re.compile(r"\) as table\b")


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
        new = set().union(*(_calls(name) for name in new)) - found
    return found


@cache
def _calls(name: str) -> set[str]:
    return macros().keys() & _words(macros()[name].statement)


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


MACROS: dict[TargetKind, TargetMacros] = {
    "labels": TargetMacros("likely_labels", "label_kl", "mix_labels"),
}


def macros_of(target: Target) -> TargetMacros:
    """Returns the macros for the logits of a target."""
    return MACROS.get(target.kind, TargetMacros())
