"""Rows written in every format that the one reader of rows takes."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.sources.row_bytes import codec, ending


def csv(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pyarrow.csv.write_csv(table, stream)
    return stream.getvalue()


def tsv(table: pa.Table) -> bytes:
    rows = [table.column_names, *zip(*table.to_pydict().values(), strict=True)]
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def parquet(table: pa.Table, **settings: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **settings)
    return stream.getvalue()


def arrow(table: pa.Table, is_stream: bool = False) -> bytes:
    stream = io.BytesIO()
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    return stream.getvalue()


def lines(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def plain_lines(table: pa.Table) -> bytes:
    return "".join(f"{text}\n" for text in table.column(0).to_pylist()).encode()


def fasttext(table: pa.Table) -> bytes:
    """The first column as texts, and the second one as a label of each."""
    texts, labels = (table.column(k).to_pylist() for k in range(2))
    return "".join(f"__label__{label} {text}\n" for text, label in zip(texts, labels, strict=True)).encode()


WRITERS: dict[str, Callable[[pa.Table], bytes]] = {
    ".csv": csv,
    ".tsv": tsv,
    ".jsonl": lambda table: lines(table.to_pylist()),
    ".ndjson": lambda table: lines(table.to_pylist()),
    ".json": lambda table: json.dumps(table.to_pylist(), indent=2).encode(),
    ".parquet": parquet,
    ".arrow": arrow,
    ".feather": lambda table: arrow(table, is_stream=True),
    ".txt": plain_lines,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)),
}


def write_rows(path: Path, table: pa.Table) -> Path:
    """Writes rows in the format, and by the compression, of a path's endings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKERS[codec(path) or ""](WRITERS[ending(path)](table)))
    return path
