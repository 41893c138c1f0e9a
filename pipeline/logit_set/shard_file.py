"""A shard's Parquet file: how it is written, and how it says in its footer which run it belongs to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.logit_set.manifest import DerivedManifest, SetManifest, Shard, SharedShard, fingerprint

FOOTER_KEY, STATISTICS_KEY = b"distill", b"distill_statistics"
MAX_UINT16 = 2**16
MAX_EXPANSION, MIN_SUSPICIOUS_BYTES = 100, 2**26
Footer = dict[str, Any]


def id_type(vocabulary_size: int) -> pa.DataType:
    """The type that ids are stored in."""
    return pa.uint16() if vocabulary_size <= MAX_UINT16 else pa.uint32()


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema, footer: Footer, **encodings: Any) -> Iterator[pq.ParquetWriter]:
    """Opens a shard to write: zstd 1, page index and checksums, and our JSON in the footer."""
    metadata = {**(schema.metadata or {}), FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()}
    with pq.ParquetWriter(
        path,
        schema.with_metadata(metadata),
        compression="zstd",
        compression_level=1,
        write_page_index=True,
        write_page_checksum=True,
        **encodings,
    ) as writer:
        yield writer


def footer_of(manifest: SetManifest, shard: Shard) -> Footer:
    """What the footer of a shard says: the fingerprint of the run that wrote it and the rows it stands for."""
    place = shard.model_dump(include={"split", "index", "count", "start", "stop"})
    writer = {"format_version": manifest.format_version, "fingerprint": manifest.fingerprint}
    if isinstance(manifest, DerivedManifest) and isinstance(shard, SharedShard) and shard.version is not None:
        for version in manifest.versions_before:
            if fingerprint(version.settings) == shard.version:
                writer = {"format_version": version.format_version, "fingerprint": shard.version}
    return {**writer, **place}


def read_metadata(path: Path) -> pq.FileMetaData:
    """Reads a shard's Parquet metadata.

    Raises:
        IntegrityError: if the file is not whole.
    """
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(f"{path}: not a whole shard of a logit set: {error}") from error


def read_footer(path: Path, key: bytes = FOOTER_KEY) -> Footer:
    """Reads our JSON from a shard's footer.

    Raises:
        IntegrityError: if the file is not whole or not one of ours.
    """
    metadata = read_metadata(path).metadata or {}
    try:
        return dict(json.loads(metadata[key]))
    except (KeyError, ValueError) as error:
        raise IntegrityError(f"{path}: not a whole shard of a logit set: {error}") from error


def bomb_problem(metadata: pq.FileMetaData, num_bytes: int) -> str | None:
    """Says if a small file would become a huge table; honest shards shrink by tens of times at most."""
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    columns = [group.column(k) for group in groups for k in range(metadata.num_columns)]
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > MAX_EXPANSION * num_bytes + MIN_SUSPICIOUS_BYTES:
        return f"{num_bytes:,} bytes that unpack to {unpacked:,}: not a shard, but a bomb"
    values = max((column.num_values for column in columns), default=0)
    if values * 2 > MAX_EXPANSION * num_bytes + MIN_SUSPICIOUS_BYTES:
        return f"{num_bytes:,} bytes that unpack to {values:,} values of a column: not a shard, but a bomb"
    return None
