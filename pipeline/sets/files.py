"""Writes and reads a shard's Parquet file, and checks its bytes, footer, columns and sizes without reading its rows."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError, raise_all
from pipeline.files import is_plain, sha256
from pipeline.parquet import UNREADABLE, Footer, footer_in, parquet_writer, read_footer, read_metadata
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import FileRecord, Shard, fingerprint

STATISTICS_KEY = b"distill_statistics"
# Decompression bombs: a run of equal values compresses a millionfold, but real logits and ids only by tens of times.
MAX_EXPANSION, MIN_SUSPICIOUS_BYTES = 100, 2**26
MOST_COLUMNS = 100
Statistics = dict[str, float]  # sums over the rows of a shard


def footer_of(record: SetRecord, shard: Shard) -> Footer:
    """Returns the content of a shard's footer: the fingerprint of the run that wrote it, and its rows."""
    place = shard.model_dump(include={"split", "index", "count", "start", "stop"})
    writer = {"format_version": record.format_version, "fingerprint": record.fingerprint}
    # Files that --extend reuses keep the footer of the version that wrote them.
    for version in record.versions_before:
        if fingerprint(version.settings) == shard.version:
            writer = {"format_version": version.format_version, "fingerprint": shard.version}
    return {**writer, **place}


def write_rows(
    path: Path,
    schema: pa.Schema,
    footer: Footer,
    encodings: dict[str, Any],
    tables: Iterable[pa.Table],
    statistics: Statistics | None = None,
) -> None:
    """Writes a shard's file, a row group per table, of which only one is in memory at a time.

    ``statistics``, sums over the rows for the footer, may grow while ``tables`` are made.
    """
    with parquet_writer(path, schema, footer, **encodings) as writer:
        for table in tables:
            writer.write_table(table)
        if statistics is not None:
            writer.add_key_value_metadata({STATISTICS_KEY: json.dumps(statistics)})


def read_statistics(path: Path) -> Statistics:
    """The sums in a shard's footer."""
    return read_footer(path, STATISTICS_KEY)


def bytes_problem(path: Path, file: Shard | FileRecord) -> str | None:
    """Returns the problem of a file by its presence, size and SHA-256, without its content, or None."""
    if not is_plain(path):
        return "missing, or not a plain file"
    if path.stat().st_size != file.bytes:
        return f"{path.stat().st_size:,} bytes, but distill.json has {file.bytes or 0:,}"
    if sha256(path) != file.sha256:
        return "its SHA-256 is not the one in distill.json. The file was changed or damaged"
    return None


def found_problem(path: Path, check: Callable[[], str | None]) -> str | None:
    """Returns the problem that a check of a file finds, or why the file cannot be read."""
    try:
        with reading(path):
            return check()
    except IntegrityError as error:
        return str(error).removeprefix(f"{path}: ")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises IntegrityError, naming the file, where Parquet cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error


def require_sound(path: Path, problem: str | None) -> None:
    """Raises IntegrityError, naming the file, if there is a problem."""
    if problem:
        raise IntegrityError(f"{path}: {problem}")


def shard_problem(root: Path, shard: Shard, expected: pa.Schema, footer: Footer) -> str | None:
    """Returns the problem of a shard's file without its rows: its bytes, or its frame. See `frame_problem`."""
    path = root / shard.path
    return bytes_problem(path, shard) or found_problem(path, lambda: frame_problem(path, shard, expected, footer))


def frame_problem(path: Path, shard: Shard, expected: pa.Schema, footer: Footer) -> str | None:
    """Returns the problem of a shard's file by its metadata and the splits of its rows, or None."""
    metadata = read_metadata(path)
    # Comparing 100,000s of hostile columns takes hours.
    if metadata.num_columns > max(MOST_COLUMNS, len(expected)):
        return f"{metadata.num_columns:,} columns, but a set of this kind has {len(expected)}"
    if footer_in(metadata, path) != footer:
        return "its footer belongs to another run or another range of rows"
    schema = metadata.schema.to_arrow_schema().remove_metadata()
    if schema != expected:
        # A lookup by name fails if a column exists twice.
        fields = list(schema)
        wrong = [field.name for field in expected if field not in fields]
        return f"columns missing or of another type: {', '.join(wrong) or 'their order'}"
    if metadata.num_rows != shard.rows:
        return f"{metadata.num_rows:,} rows, but distill.json has {shard.rows or 0:,}"
    return bomb_problem(metadata, path) or split_problem(metadata, path, shard.split)


def split_problem(metadata: pq.FileMetaData, path: Path, split: str) -> str | None:
    """Returns a problem if a shard has rows of another split.

    Reads the dictionary, because hostile names may be very long.
    """
    # Reading ahead and threads do not speed up a single column.
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=["split"], pre_buffer=False) as file:
        for batch in file.iter_batches(columns=["split"], use_threads=False):
            if not which_are(pa.Table.from_batches([batch]).column("split"), split).all():
                return f"holds rows of another split than {split!r}"
    return None


def which_are(column: pa.ChunkedArray, text: str) -> npt.NDArray[np.bool_]:
    """Returns which rows of a dictionary column hold a text. Each distinct text is checked once."""
    parts = [pc.equal(part.dictionary, text).take(part.indices) for part in column.chunks]
    is_text_R: npt.NDArray[np.bool_] = pa.chunked_array(parts, pa.bool_()).fill_null(False).to_numpy()
    return is_text_R


def bomb_problem(metadata: pq.FileMetaData, path: Path) -> str | None:
    """Returns a problem if a small file would become a huge table. Real shards shrink at most by tens of times.

    Raises:
        OSError: if the metadata of a column contradict the schema.
    """
    num_bytes, columns = path.stat().st_size, list(_columns(metadata, path))
    unpacked = sum(column.total_uncompressed_size for column in columns)
    if unpacked > MAX_EXPANSION * num_bytes + MIN_SUSPICIOUS_BYTES:
        return f"{num_bytes:,} bytes that unpack to {unpacked:,}: this is a decompression bomb and not a shard"
    values = sum(column.num_values for column in columns)
    # Run-length encoding hides values from the uncompressed size, so they are counted as well, at two bytes each.
    if values * 2 > MAX_EXPANSION * num_bytes + MIN_SUSPICIOUS_BYTES:
        return f"{num_bytes:,} bytes that unpack to {values:,} values: this is a decompression bomb and not a shard"
    return None


def _columns(metadata: pq.FileMetaData, path: Path) -> Iterator[pq.ColumnChunkMetaData]:
    """Yields the metadata of each column of each row group.

    A reader without columns is opened first: it raises an error where pyarrow would end the process.
    """
    with pq.ParquetFile(path, metadata=metadata, pre_buffer=False, buffer_size=4096) as file:
        for number in range(metadata.num_row_groups):
            for _ in file.reader.iter_batches(0, row_groups=[number], use_threads=False):
                pass
            group = metadata.row_group(number)
            yield from map(group.column, range(metadata.num_columns))


def require_shards(root: Path, record: SetRecord, shards: Sequence[Shard]) -> None:
    """Raises IntegrityError, listing every problem, unless shards match the record and have a set's columns."""
    schema, problems = record.arrow_schema(), []
    for shard in shards:
        problem = shard_problem(root, shard, schema, footer_of(record, shard))
        problems += [f"{shard.path}: {problem}"] if problem else []
    raise_all(IntegrityError, f"{root}: cannot be used", problems)


def is_done(root: Path, shard: Shard, footer: Footer) -> bool:
    """Whether a shard's file exists, has the right footer, and matches its record if there is one."""
    path = root / shard.path
    if not path.is_file() or (shard.sha256 is not None and bytes_problem(path, shard)):
        return False
    try:
        # Before completion no checksum is known. The footer is written last, so a right footer means a complete file.
        return read_footer(path) == footer
    except IntegrityError:
        return False


def measured(root: Path, shard: Shard) -> Shard:
    """Returns a shard with rows, bytes and checksum of its file."""
    path = root / shard.path
    rows = read_metadata(path).num_rows
    return shard.model_copy(update={"rows": rows, "bytes": path.stat().st_size, "sha256": sha256(path)})
