"""A shard's Parquet file: how it is written, and how it says in its footer which run it belongs to."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.files import is_plain
from pipeline.sets.fingerprint import fingerprint
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.untrusted import parse_json

FOOTER_KEY, STATISTICS_KEY = b"distill", b"distill_statistics"
MAX_EXPANSION, MIN_SUSPICIOUS_BYTES = 100, 2**26
Footer = dict[str, Any]


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


def footer_of(record: SetRecord, shard: Shard) -> Footer:
    """What the footer of a shard says: the fingerprint of the run that wrote it and the rows it stands for."""
    place = shard.model_dump(include={"split", "index", "count", "start", "stop"})
    writer = {"format_version": record.format_version, "fingerprint": record.fingerprint}
    for version in record.versions_before:
        if fingerprint(version.settings) == shard.version:
            writer = {"format_version": version.format_version, "fingerprint": shard.version}
    return {**writer, **place}


def read_metadata(path: Path) -> pq.FileMetaData:
    """Reads a shard's Parquet metadata.

    Raises:
        IntegrityError: if it is no plain file, or not whole.
    """
    if not is_plain(path):  # a named pipe would never end
        raise IntegrityError(f"{path}: not a whole shard of a logit set: missing, or not a plain file")
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last of names of columns
        raise IntegrityError(f"{path}: not a whole shard of a logit set: {error}") from error


def read_footer(path: Path, key: bytes = FOOTER_KEY) -> Footer:
    """Reads our JSON from a shard's footer.

    Raises:
        IntegrityError: if the file is not whole or not one of ours.
    """
    return footer_in(read_metadata(path), path, key)


def footer_in(metadata: pq.FileMetaData, path: Path, key: bytes = FOOTER_KEY) -> Footer:
    """The same from metadata that were read."""
    try:
        values = parse_json((metadata.metadata or {})[key])
    except KeyError as error:
        raise IntegrityError(
            f"{path}: not a whole shard of a logit set: its footer does not say what it belongs to"
        ) from error
    except ValueError as error:
        raise IntegrityError(f"{path}: not a whole shard of a logit set: {error}") from error
    if not isinstance(values, dict):
        raise IntegrityError(f"{path}: not a whole shard of a logit set: its footer holds a {type(values).__name__}")
    return values


def split_problem(metadata: pq.FileMetaData, path: Path, split: str) -> str | None:
    """Says so if a shard has rows of another split; by the dictionary, as the name of one may be ever so long."""
    # of one column nothing is gained by reading ahead, nor by threads
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=["split"], pre_buffer=False) as file:
        for batch in file.iter_batches(columns=["split"], use_threads=False):
            if not which_are(pa.Table.from_batches([batch]).column("split"), split).all():
                return f"holds rows of another split than {split!r}"
    return None


def which_are(column: pa.ChunkedArray, text: str) -> npt.NDArray[np.bool_]:
    """Which rows of a column that was read as a dictionary hold a text; each text of the column is looked at once."""
    parts = [pc.equal(part.dictionary, text).take(part.indices) for part in column.chunks]
    is_text_R: npt.NDArray[np.bool_] = pa.chunked_array(parts, pa.bool_()).fill_null(False).to_numpy()
    return is_text_R


def bomb_problem(metadata: pq.FileMetaData, path: Path) -> str | None:
    """Says if a small file would become a huge table; honest shards shrink by tens of times at most.

    Raises:
        OSError: if what is said of a column contradicts the schema.
    """
    num_bytes, columns = path.stat().st_size, list(_columns(metadata, path))
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > MAX_EXPANSION * num_bytes + MIN_SUSPICIOUS_BYTES:
        return f"{num_bytes:,} bytes that unpack to {unpacked:,}: not a shard, but a bomb"
    values = sum(column.num_values for column in columns)
    if values * 2 > MAX_EXPANSION * num_bytes + MIN_SUSPICIOUS_BYTES:
        return f"{num_bytes:,} bytes that unpack to {values:,} values: not a shard, but a bomb"
    return None


def _columns(metadata: pq.FileMetaData, path: Path) -> Iterator[pq.ColumnChunkMetaData]:
    """What metadata say of each column of each row group.

    A reader of no rows looks at them first: it raises where pyarrow, asked for them, would end the process.
    """
    with pq.ParquetFile(path, metadata=metadata, pre_buffer=False, buffer_size=4096) as file:
        for number in range(metadata.num_row_groups):
            for _ in file.reader.iter_batches(0, row_groups=[number], use_threads=False):
                pass
            group = metadata.row_group(number)
            yield from map(group.column, range(metadata.num_columns))
