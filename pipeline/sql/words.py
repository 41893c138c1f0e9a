"""Questions to sets of labelled words: those about texts are refused by name, with what there is instead."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import duckdb

from pipeline.errors import QueryError

OF_WORDS = ("calibration", "calibration_error", "confusion", "class_scores")
COLUMNS = "select column_name from duckdb_columns() where lower(table_name) = lower(?)"


def refuse_for_words(
    connection: duckdb.DuckDBPyConnection, questions: Iterable[dict[str, Any]], local: Collection[str]
) -> None:
    """Raises QueryError for a question that is asked of labelled words and cannot be.

    Args:
        connection: the database with the views.
        questions: the calls of our own table macros, as the syntax tree has them.
        local: names that the query itself gives (``with name as …``), which may hide a view's.
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
    return f"{question}({view}): does not take {rows}, which {view} has; of its words there are {there}"


def _names(call: dict[str, Any]) -> Iterator[str]:
    """What a macro is asked about, by name or as a text in quotes."""
    for argument in call["arguments"]:
        expression = argument["expression"]
        yield from expression.get("column_names", [])[-1:]
        if expression.get("literal", {}).get("kind") == "STRING":
            yield str(expression["literal"]["text"])
