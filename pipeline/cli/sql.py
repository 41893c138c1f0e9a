"""``distill index`` and ``distill sql``."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline import console
from pipeline.cli.options import reports_errors
from pipeline.environment import store_folder

Store = Annotated[Path | None, typer.Option(help="Folder of logit sets (DISTILL_STORE). [default: ./logits]")]


@reports_errors
def index(
    store: Store = None, json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False
) -> None:
    """Index the logit sets of a store in DuckDB. `distill sql` does so by itself when something changed."""
    from pipeline.catalog import build_catalog, view_name

    sets = build_catalog(store or store_folder())
    if json_output:
        console.print_json([manifest.model_dump(mode="json") for manifest in sets])
        return
    rows = [[m.name, view_name(m.name), m.state, m.num_rows, console.size(m.num_bytes), m.teacher.name] for m in sets]
    console.print_table(["set", "view", "state", "rows", "bytes", "teacher"], rows, title=str(store or store_folder()))


@reports_errors
def sql(
    query: Annotated[str, typer.Argument(help="One SELECT. Tables: sets, shards, teachers, and a view per set.")],
    store: Store = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print rows as JSON.")] = False,
    csv_output: Annotated[bool, typer.Option("--csv", help="Print rows as CSV.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write rows to a Parquet file.")] = None,
) -> None:
    """Query the logit sets of a store, read-only."""
    from pipeline.catalog import open_catalog
    from pipeline.errors import ConfigError
    from pipeline.sql.gate import select, to_arrow

    if sum([json_output, csv_output, parquet is not None]) > 1:
        raise ConfigError("choose one of --json, --csv and --parquet")
    with open_catalog(store or store_folder()) as connection:
        relation = select(connection, query)
        if parquet is not None:
            _write_parquet(parquet, relation)
            return
        table = to_arrow(relation)
    columns = table.column_names
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    if json_output:
        console.print_json([dict(zip(columns, map(_plain, row), strict=True)) for row in rows])
    elif csv_output:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([columns, *rows])
    else:
        console.print_rows(columns, rows)


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _write_parquet(path: Path, relation: Any) -> None:
    """Streams the rows to a file, by our own hand: the query itself must not write."""
    import duckdb
    import pyarrow.parquet as pq

    from pipeline.files import write_atomically
    from pipeline.sql.gate import query_error

    def write(temporary: Path) -> None:
        reader = relation.to_arrow_reader()
        with pq.ParquetWriter(temporary, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)

    try:
        write_atomically(path, write)
    except duckdb.Error as error:
        raise query_error(error) from error
    console.note(f"wrote {path}")
