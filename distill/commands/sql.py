"""``distill index`` and ``distill sql``."""

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distill.commands.options import reports_errors
from pipeline import console
from pipeline.environment import history_file, store_folder

if TYPE_CHECKING:
    import duckdb

STUDENTS_FUNCTIONS = ("predict", "predict_or_abstain", "scores")  # of `student.sql`
Store = Annotated[Path | None, typer.Option(help="Folder of logit sets (DISTILL_STORE). [default: ./logits]")]


@reports_errors
def index(
    store: Store = None, json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
) -> None:
    """Index the logit sets of a store in DuckDB. `distill sql` does so by itself when something changed."""
    from pipeline.query.catalog import build_catalog
    from pipeline.sql.names import view_name

    sets = build_catalog(store or store_folder())
    if json_output:
        console.print_json([record.model_dump(mode="json") for record in sets])
        return
    rows = [[m.name, view_name(m.name), m.state, m.num_rows, console.size(m.num_bytes), m.teacher.name] for m in sets]
    console.print_table(["set", "view", "state", "rows", "bytes", "teacher"], rows, title=str(store or store_folder()))


@reports_errors
def sql(
    query: Annotated[
        str | None,
        typer.Argument(
            help="One SELECT. Tables: sets, shards, teachers, examples, and a view per set. - reads it from standard "
            "input; without one, a terminal gets a prompt."
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the query from a file.")] = None,
    explain_row: Annotated[
        str | None,
        typer.Option(metavar="SET:SPLIT:ROW[:VARIANT]", help="Tell where a row comes from, instead of a query."),
    ] = None,
    store: Store = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print rows as JSON.")] = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Print rows as CSV.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write rows to a Parquet file.")] = None,
) -> None:
    """Query the logit sets of a store, read-only."""
    from pipeline.errors import ConfigError
    from pipeline.query.catalog import open_catalog
    from pipeline.sql.answer import write_parquet
    from pipeline.sql.gate import interruptible, select

    if sum([json_output, csv_output, parquet is not None]) > 1:
        raise ConfigError("choose one of --json, --csv and --parquet")
    if explain_row is not None:
        if query is not None or file is not None or csv_output or parquet is not None:
            raise ConfigError("--explain-row goes with --store and --json alone; leave out the rest")
        _explain(store or store_folder(), explain_row, json_output)
        return
    text = _query(query, file)
    if text is None and parquet is not None:
        raise ConfigError("--parquet takes one query: give it as an argument, with --file, or on standard input")
    with open_catalog(store or store_folder()) as connection:

        def answer(text: str) -> None:
            interruptible(connection, lambda: answer_now(text))

        def answer_now(text: str) -> None:
            _register_students(connection, text)
            relation = select(connection, text)
            if parquet is not None:
                write_parquet(parquet, relation)
                console.note(f"wrote {parquet}")
            else:
                _print(relation, "json" if json_output else "csv" if csv_output else "table")

        if text is None:
            from distill.commands.prompt import run_prompt

            run_prompt(connection, answer, history_file())
        else:
            answer(text)


def _register_students(connection: "duckdb.DuckDBPyConnection", text: str) -> None:
    """Adds the functions of students to a connection if a query asks the students of runs."""
    from pipeline.sql.statement import first_arguments

    runs = first_arguments(text, STUDENTS_FUNCTIONS)
    if runs:
        from student.sql import register

        register(connection, *runs)


def _explain(store: Path, address: str, json_output: bool) -> None:
    from pipeline.query.explain import explain_row

    sections = explain_row(store, address)
    if json_output:
        console.print_json(sections)
        return
    for title, pairs in sections.items():
        console.print_pairs(title, {key.replace("_", " "): value for key, value in pairs.items() if value is not None})


def _query(query: str | None, file: Path | None) -> str | None:
    """The text of the query; None if it is to be asked for."""
    from pipeline.errors import ConfigError, DataError, unreadable

    if file is not None:
        if query is not None:
            raise ConfigError("the query is given twice, as an argument and as --file; leave one out")
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"--file {file}: {unreadable(error)}") from error
    if query == "-" or (query is None and not sys.stdin.isatty()):
        return sys.stdin.read()
    return query


def _print(relation: Any, form: Literal["table", "json", "csv"]) -> None:
    from pipeline.sql.answer import as_dicts, fetch_rows, with_hex

    columns, rows = relation.columns, fetch_rows(relation)
    if form == "json":
        console.print_json(as_dicts(columns, rows))
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([columns, *(map(with_hex, row) for row in rows)])
    else:
        console.print_rows(columns, rows)
        if not rows:
            console.note("no rows")
