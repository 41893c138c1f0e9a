"""The one reader of rows beside DuckDB's and Arrow's own, in every format: ``python -m tests.benchmarks.row_formats``.

The same 100,000 rows of a text, a label and a number; two of the three columns are read into a table of Arrow, by one
thread and by turns. The others neither look for what is wrong with a file, nor name its line.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from distill.apps.timing import interleaved
from pipeline import console
from pipeline.sources.row_files import FORMATS, open_rows
from tests.benchmarks.ratios import ratios
from tests.helpers.row_formats import write_rows

ROWS = 100_000
COLUMNS = ["text", "label"]
WORDS = [
    "the",
    "film",
    "was",
    "a",
    "good",
    "one",
    "and",
    "nobody",
    "saw",
    "it",
    "coming",
    "although",
    "its",
    "plot",
    "is",
    "thin",
]
TABS = pc.ParseOptions(delimiter="\t", quote_char=False)
OF_ARROW: dict[str, Callable[[Path], object]] = {
    ".parquet": lambda path: pq.read_table(path, columns=COLUMNS),
    ".arrow": lambda path: pa.ipc.open_file(path).read_all().select(COLUMNS),
    ".feather": lambda path: pa.ipc.open_stream(path).read_all().select(COLUMNS),
    ".csv": pc.read_csv,
    ".csv.gz": pc.read_csv,
    ".tsv": lambda path: pc.read_csv(path, parse_options=TABS),
    ".jsonl": pj.read_json,
    ".jsonl.gz": lambda path: pj.read_json(pa.input_stream(path)),
    ".ndjson": pj.read_json,
}
OF_DUCKDB = {
    ".parquet": "select text, label from read_parquet($1)",
    ".csv": "select text, label from read_csv($1)",
    ".csv.gz": "select text, label from read_csv($1)",
    ".tsv": "select text, label from read_csv($1, delim = '\t', quote = '')",
    ".jsonl": "select text, label from read_json($1)",
    ".jsonl.gz": "select text, label from read_json($1)",
    ".ndjson": "select text, label from read_json($1)",
    ".json": "select text, label from read_json($1)",
    ".txt": "select * from read_csv($1, header = false, delim = '\x01', quote = '', columns = {'t': 'varchar'})",
}


def alternatives(folder: Path, kind: str, rows: int = ROWS) -> dict[str, Callable[[], object]]:
    """The ways to read a file of a kind, which is written into a folder."""
    random = np.random.default_rng(0)
    texts = [" ".join(words) for words in random.choice(WORDS, (rows, 12)).tolist()]
    path = write_rows(
        folder / f"rows{kind}", pa.table({"text": texts, "label": np.arange(rows) % 2, "more": np.arange(rows)})
    )
    database = duckdb.connect(config={"threads": 1})
    columns = None if kind == ".txt" else COLUMNS
    ways: dict[str, Callable[[], object]] = {"one reader": lambda: open_rows(path).table(columns)}
    if kind in OF_ARROW:
        ways["Arrow"] = lambda: OF_ARROW[kind](path)
    if kind in OF_DUCKDB:
        ways["DuckDB"] = lambda: database.sql(OF_DUCKDB[kind], params=[str(path)]).to_arrow_table()
    return ways


def main() -> None:
    """Measures, and prints a table."""
    pa.set_cpu_count(1)
    with TemporaryDirectory(prefix="distill-bench-") as folder:
        for kind in sorted({*FORMATS, ".csv.gz", ".jsonl.gz"}):
            rows = ratios(interleaved(alternatives(Path(folder), kind)))
            console.print_table([f"{ROWS:,} rows of {kind}", "median ms", "x first"], rows)


if __name__ == "__main__":
    main()
