"""``distill sql``."""

import sys
from typing import TYPE_CHECKING

from distill.commands.command import command, needs_libraries, prints_json
from distill.result import Csv, Result, Table
from pipeline.environment import history_file
from pipeline.errors import ConfigError, DataError, unreadable
from pipeline.sets.set_settings import SqlSettings

if TYPE_CHECKING:
    import duckdb

# Of `student.sql_functions`.
STUDENTS_FUNCTIONS = ("predict", "predict_or_abstain", "predict_tasks", "scores", "spans", "stage")


@command(SqlSettings)
def sql(settings: SqlSettings) -> Result:
    """Query the logit sets of a store, read-only."""
    from pipeline.interrupts import interrupting
    from pipeline.query.catalog import open_catalog

    if sum([prints_json(), settings.csv, settings.parquet is not None]) > 1:
        raise ConfigError("choose one of --json, --csv and --parquet")
    if settings.explain_row is not None:
        return _explain(settings)
    query = _query(settings)
    if query is None and settings.parquet is not None:
        raise ConfigError("--parquet takes one query: give it as an argument, with --file, or on standard input")
    with open_catalog(settings.store) as connection:

        def answer(text: str) -> Result:
            with interrupting(connection.interrupt):
                return _answer(connection, text, settings)

        if query is not None:
            return answer(query)
        needs_libraries("the prompt of distill sql", "prompt", "prompt_toolkit", "pygments")
        from distill.commands.prompt import run_prompt

        def answer_and_print(text: str) -> None:
            answer(text).print(prints_json())

        run_prompt(connection, answer_and_print, history_file())
        return Result()


def _answer(connection: "duckdb.DuckDBPyConnection", query: str, settings: SqlSettings) -> Result:
    from pipeline.sql.read_only_query import as_dicts, fetch_rows, first_arguments, select, with_hex, write_parquet

    # torch is loaded only for queries that call a student, and the runs have to be known before the query is bound.
    runs, labels = first_arguments(query, STUDENTS_FUNCTIONS), {}
    if runs:
        from student.sql_functions import register

        labels = register(connection, *runs)
    relation = select(connection, query, labels)
    if settings.parquet is not None:
        write_parquet(settings.parquet, relation)
        return Result().note(f"wrote {settings.parquet}")
    columns, rows = relation.columns, fetch_rows(relation)
    result = Result(as_dicts(columns, rows))
    if settings.csv:
        return result.add(Csv(columns, [list(map(with_hex, row)) for row in rows]))
    result.add(Table(columns, rows, is_data=True))
    return result if rows else result.note("no rows")


def _explain(settings: SqlSettings) -> Result:
    from pipeline.query.explain_row import explain_row

    assert settings.explain_row is not None
    sections = explain_row(settings.store, settings.explain_row)
    result = Result(sections)
    for title, pairs in sections.items():
        result.pairs(title, {key.replace("_", " "): value for key, value in pairs.items() if value is not None})
    return result


def _query(settings: SqlSettings) -> str | None:
    """The text of the query, or None if the prompt is to read it."""
    if settings.file is not None:
        try:
            return settings.file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"--file {settings.file}: {unreadable(error)}") from error
    if settings.query == "-" or (settings.query is None and not sys.stdin.isatty()):
        try:
            return sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"standard input: {unreadable(error)}") from error
    return settings.query
