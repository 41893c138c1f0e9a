"""Writes and reads our Parquet files, each with JSON in its footer that identifies what the file belongs to.

A footer is at the end of a file and is written last, so that a file with the right footer is complete.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.files import is_plain
from pipeline.untrusted import parse_json

FOOTER_KEY = b"distill"
INCOMPLETE = "not a complete Parquet file written by distill"
Footer = dict[str, Any]
UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)  # column names may be invalid UTF-8


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema, footer: Footer, **encodings: Any) -> Iterator[pq.ParquetWriter]:
    """Opens a file for writing: zstd 1, page index and page checksums, and ``footer`` as JSON in the footer."""
    # Sorted keys make the bytes of a file a function of its content, so that shards written twice have the same
    # SHA-256.
    metadata = {**(schema.metadata or {}), FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()}
    with pq.ParquetWriter(
        path,
        schema.with_metadata(metadata),
        # Logits are mostly noise to a compressor, so higher levels would only cost time.
        compression="zstd",
        compression_level=1,
        write_page_index=True,
        # Readers that verify pages find damage in the page that they read, without hashing the whole file.
        write_page_checksum=True,
        **encodings,
    ) as writer:
        yield writer


def read_metadata(path: Path) -> pq.FileMetaData:
    """Reads a file's Parquet metadata.

    Raises:
        IntegrityError: if it is not a plain file, or not complete.
    """
    # Opening a named pipe would block forever.
    if not is_plain(path):
        raise IntegrityError(f"{path}: {INCOMPLETE}: missing, or not a plain file")
    try:
        return pq.read_metadata(path)
    except UNREADABLE as error:
        raise IntegrityError(f"{path}: {INCOMPLETE}: {error}") from error


def read_footer(path: Path, key: bytes = FOOTER_KEY) -> Footer:
    """Reads our JSON from a file's footer.

    Raises:
        IntegrityError: if the file is not complete, or was not written by this program.
    """
    return footer_in(read_metadata(path), path, key)


def footer_in(metadata: pq.FileMetaData, path: Path, key: bytes = FOOTER_KEY) -> Footer:
    """Reads our JSON from metadata that have been read. See `read_footer`."""
    try:
        values = parse_json((metadata.metadata or {})[key])
    except KeyError as error:
        raise IntegrityError(f"{path}: {INCOMPLETE}: its footer does not identify it") from error
    except ValueError as error:
        raise IntegrityError(f"{path}: {INCOMPLETE}: {error}") from error
    if not isinstance(values, dict):
        raise IntegrityError(f"{path}: {INCOMPLETE}: its footer contains a {type(values).__name__}")
    return values


def read_groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yields a file's row groups, with all columns or some."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns)
