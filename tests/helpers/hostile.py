"""Sets as an enemy would write them, and the command line under limits that it may not reach."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files import sha256
from pipeline.record_file import read_record
from pipeline.sets.files import footer_of
from pipeline.sets.record import FILE_NAME, read_set_record

MEMORY_BYTES, CPU_S, WALL_S = 4 * 2**30, 60, 120
Change = Callable[[pa.Table], pa.Table]


def limited(*arguments: object) -> str:
    """Runs a command that must end by itself with one message of ours; returns the message."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    command = [sys.executable, "-m", "distill", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WALL_S, preexec_fn=limit, check=False)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr[-3000:])
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 20_000
    assert "\x1b" not in done.stdout + done.stderr
    return done.stderr


def edit(root: Path, **changes: Any) -> None:
    """Changes keys of a ``distill.json``; ``a__b`` is the key b of a."""
    values = read_record(root / FILE_NAME)
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = values
        for parent in parents:
            part = part[int(parent) if isinstance(part, list) else parent]
        part[int(last) if isinstance(part, list) else last] = value
    (root / FILE_NAME).write_text(json.dumps(values))


def rerecord(root: Path, number: int, **changes: Any) -> None:
    """Writes a shard's bytes and hash, as they are now, into ``distill.json``."""
    path = root / read_set_record(root).shards[number].path
    values = {"bytes": path.stat().st_size, "sha256": sha256(path), **changes}
    edit(root, **{f"shards__{number}__{key}": value for key, value in values.items()})


def rewrite(root: Path, change: Change, number: int = 3, footer: bytes | None = None, **options: Any) -> None:
    """Changes a shard's rows; footer, bytes, rows and hash are honest, so that one lie is left."""
    record = read_set_record(root)
    shard = record.shards[number]
    table = change(pq.read_table(root / shard.path, partitioning=None))
    honest = json.dumps(footer_of(record, shard)).encode()
    schema = table.schema.remove_metadata()
    with pq.ParquetWriter(root / shard.path, schema, compression="zstd", write_statistics=False, **options) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata({b"distill": honest if footer is None else footer})
    rerecord(root, number, rows=table.num_rows)


def with_values(table: pa.Table, name: str, values: Any, kind: pa.DataType | None = None) -> pa.Table:
    """The table with other values in a column."""
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    field = field.with_type(kind or field.type)
    array = values if isinstance(values, pa.Array) else pa.array(values, field.type)
    return table.set_column(place, field, array)


def with_value(name: str, row: int, value: Any) -> Change:
    """A change of one value."""

    def change(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[row] = value
        return with_values(table, name, values)

    return change
