"""Columns of the ``examples`` files, how they are encoded, and how a shard says which run it belongs to."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.logit_set.manifest import FORMAT_VERSION, SetManifest, Shard
from pipeline.targets import Floats

FOOTER_KEY = b"distill"
TEXT_HASH_BYTES = 16
MAX_UINT16 = 2**16


def examples_schema(num_logits: int, vocabulary_size: int) -> pa.Schema:
    """The columns of a set with ``num_logits`` logits a row; ids are uint16 where the vocabulary fits."""
    ids = pa.list_(pa.uint16() if vocabulary_size <= MAX_UINT16 else pa.uint32())
    return pa.schema(
        [
            pa.field("split", pa.string(), nullable=False),
            pa.field("source_row", pa.int64(), nullable=False),
            pa.field("variant", pa.int32(), nullable=False),
            pa.field("origin", pa.string(), nullable=False),
            pa.field("sentence1", pa.string()),
            pa.field("sentence2", pa.string()),
            pa.field("ids1", ids, nullable=False),
            pa.field("ids2", ids),
            pa.field("text_hash", pa.binary(TEXT_HASH_BYTES), nullable=False),
            pa.field("label", pa.int32()),
            pa.field("score", pa.float32()),
            pa.field("logits", pa.list_(pa.float32(), num_logits), nullable=False),
        ]
    )


def text_hash(tokenizer_sha256: str, sentence1: str, sentence2: str | None) -> bytes:
    """Key of an input's text under a tokenizer: 16 bytes of BLAKE2b, unambiguous between one sentence and two."""
    parts = [tokenizer_sha256, sentence1] if sentence2 is None else [tokenizer_sha256, sentence1, sentence2]
    digest = hashlib.blake2b(digest_size=TEXT_HASH_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def write_parquet(path: Path, table: pa.Table, footer: dict[str, Any]) -> None:
    """Writes a shard: zstd 1, dictionary ids, byte-split logits, page index and checksums, and our JSON in the footer.

    float32 logits split well byte by byte; DuckDB reads that encoding for float32 (for float16 it does not).
    """
    metadata = {**(table.schema.metadata or {}), FOOTER_KEY: json.dumps(footer, sort_keys=True).encode()}
    pq.write_table(
        table.replace_schema_metadata(metadata),
        path,
        compression="zstd",
        compression_level=1,
        use_dictionary=["split", "origin", "ids1.list.element", "ids2.list.element", "label", "score", "variant"],
        use_byte_stream_split=["logits.list.element"],
        write_page_index=True,
        write_page_checksum=True,
        write_statistics=["split", "source_row", "variant", "origin", "label"],
    )


def logits_of(table: pa.Table, num_logits: int) -> Floats:
    """The logits column as an array [N, C] of float32."""
    flat = table.column("logits").combine_chunks().flatten()
    return np.array(flat.to_numpy(zero_copy_only=False), dtype=np.float32).reshape(-1, num_logits)


def footer_of(manifest: SetManifest, shard: Shard) -> dict[str, Any]:
    """What the footer of a shard says: the run's fingerprint and the rows it stands for."""
    place = shard.model_dump(include={"split", "index", "count", "start", "stop"})
    return {"format_version": FORMAT_VERSION, "fingerprint": manifest.fingerprint, **place}


def read_footer(path: Path) -> dict[str, Any]:
    """Reads our JSON from a shard's footer.

    Raises:
        IntegrityError: if the file is not whole or not one of ours.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
        return dict(json.loads(metadata[FOOTER_KEY]))
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise IntegrityError(f"{path}: not a whole shard of a logit set: {error}") from error
