"""A shard's Parquet file: what its footer holds, and what marks one that nobody should read."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.parquet import Footer
from pipeline.sets.fingerprint import fingerprint
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard

STATISTICS_KEY = b"distill_statistics"
MAX_EXPANSION, MIN_SUSPICIOUS_BYTES = 100, 2**26


def footer_of(record: SetRecord, shard: Shard) -> Footer:
    """What the footer of a shard says: the fingerprint of the run that wrote it and the rows it stands for."""
    place = shard.model_dump(include={"split", "index", "count", "start", "stop"})
    writer = {"format_version": record.format_version, "fingerprint": record.fingerprint}
    for version in record.versions_before:
        if fingerprint(version.settings) == shard.version:
            writer = {"format_version": version.format_version, "fingerprint": shard.version}
    return {**writer, **place}


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
