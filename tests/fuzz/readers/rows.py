"""Rows of a task in Parquet, JSON lines, CSV, TSV and text: all at once, and batch by batch."""

import pyarrow as pa

from pipeline.sources.row_files import open_rows
from tests.fuzz.files import FIXTURES, of_a_kind, seeds, written
from tests.helpers.row_formats import arrow

COVERS = tuple(f"pipeline.sources.{name}" for name in ("row_files", "delimited_rows", "json_rows", "line_rows"))
KINDS = (".csv", ".tsv", ".jsonl", ".txt", ".parquet", ".json", ".arrow")
SEEDS = seeds(
    KINDS,
    {
        ".csv": [b'sentence,label\n"a, b\nc",1\nd,0\n', "\ufeffa\r\né\r\n".encode()],
        ".tsv": [b'sentence\tlabel\na "b\t1\nd\t0\n', b"one\t1\ntwo\t0\n"],
        ".jsonl": [b'{"a": "b", "c": {"d": [1, null]}}\n\n{"a": "e"}\n', b'{"a": [1.5, 2]}\n{"a": null}\n'],
        ".txt": [b"a\nb\r\n\nc", b"__label__a b c\nd __label__e\n"],
        ".json": [b'[{"a": 1}, {"a": null, "b": ["x"]}]'],
        ".arrow": [arrow(pa.table({"a": ["x", None]}))],
        ".parquet": [next((FIXTURES / "variants").rglob("validation*.parquet")).read_bytes()],
    },
)


def read(data: bytes) -> None:
    kind, content = of_a_kind(data, KINDS)
    path = written(f"rows{kind}", content)
    rows = open_rows(path, ("a", "b"))
    for _ in rows.batches(rows.names):
        pass
    rows.table()
