"""What can be told of a Parquet file without its rows: its bytes, and its frame of footer, columns and numbers."""

from pathlib import Path

import pyarrow as pa

from pipeline.files import is_plain, sha256
from pipeline.parquet import Footer, footer_in, read_metadata
from pipeline.sets.record_parts import Shard
from pipeline.sets.shard_file import bomb_problem, split_problem

MOST_COLUMNS = 100


def check_bytes(root: Path, shard: Shard) -> list[str]:
    """Says what is wrong with a shard's file, without looking inside: presence, size, SHA-256."""
    path = root / shard.path
    if not is_plain(path):
        return [f"{shard.path}: missing, or not a plain file"]
    if path.stat().st_size != shard.bytes:
        return [f"{shard.path}: {path.stat().st_size:,} bytes, but distill.json says {shard.bytes or 0:,}"]
    if sha256(path) != shard.sha256:
        return [f"{shard.path}: its SHA-256 is not the one in distill.json; the file was changed or damaged"]
    return []


def frame_problem(path: Path, shard: Shard, expected: pa.Schema, footer: Footer) -> str | None:
    """What is wrong with the file of a shard as far as its metadata tell, and the splits of its rows.

    Args:
        path: the file.
        shard: which rows it stands for, and how many it has.
        expected: its columns.
        footer: what it must say that it belongs to.
    """
    metadata = read_metadata(path)
    if metadata.num_columns > max(MOST_COLUMNS, len(expected)):  # hundreds of thousands would take hours to compare
        return f"{metadata.num_columns:,} columns, but a set of this kind has {len(expected)}"
    if footer_in(metadata, path) != footer:
        return "its footer belongs to another run or another range of rows"
    schema = metadata.schema.to_arrow_schema().remove_metadata()
    if schema != expected:
        fields = list(schema)  # by name it cannot be asked for a column that is there twice
        wrong = [field.name for field in expected if field not in fields]
        return f"columns missing or of another type: {', '.join(wrong) or 'their order'}"
    if metadata.num_rows != shard.rows:
        return f"{metadata.num_rows:,} rows, but distill.json says {shard.rows or 0:,}"
    return bomb_problem(metadata, path) or split_problem(metadata, path, shard.split)
