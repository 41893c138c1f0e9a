"""The ``examples`` files: how a shard is put together and encoded."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.parquet import Footer, parquet_writer
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.row_kinds import TEXT_HASH_BYTES
from pipeline.sources import sentences
from pipeline.text.tokenizer import Tokenized

DICTIONARY_COLUMNS = ("split", "origin", "label", "score", "variant")
BYTE_SPLIT_COLUMNS = ("ids1.list.element", "ids2.list.element", "logits.list.element")


def text_hash(tokenizer_sha256: str, sentence1: str, sentence2: str | None) -> bytes:
    """Key of an input's text under a tokenizer, see `hash_of_texts`."""
    return hash_of_texts(tokenizer_sha256, *([sentence1] if sentence2 is None else [sentence1, sentence2]))


def hash_of_texts(*parts: str) -> bytes:
    """Hash of texts in their order, 16 bytes of BLAKE2b, unambiguous between one and several."""
    digest = hashlib.blake2b(digest_size=TEXT_HASH_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def write_examples(path: Path, table: pa.Table, footer: Footer) -> None:
    """Writes a shard: ids and logits byte by byte, which compresses them best (ids a seventh better than a dictionary).

    DuckDB reads that encoding for integers and float32; for float16 it does not.
    """

    def in_table(columns: tuple[str, ...]) -> list[str]:
        return [name for name in columns if name.partition(".")[0] in table.column_names]

    with parquet_writer(
        path,
        table.schema,
        footer,
        use_dictionary=in_table(DICTIONARY_COLUMNS),
        use_byte_stream_split=in_table(BYTE_SPLIT_COLUMNS),
        write_statistics=["split", "source_row", "variant", "origin", "label"],
    ) as writer:
        writer.write_table(table)


def shard_table(
    record: SetRecord,
    shard: Shard,
    rows: pa.Table,
    hashes: Sequence[bytes],
    inputs: Sequence[Tokenized],
    logits_NC: Floats,
) -> pa.Table:
    """The table of a shard: rows, their tokens and their logits side by side.

    Args:
        record: the set's record.
        shard: which rows of which split.
        rows: its rows, variants and all.
        hashes: their text hashes.
        inputs: the same rows in tokens.
        logits_NC: float32, the same rows' logits in the task's label order.

    Returns:
        The table, in the order of the rows.
    """
    schema = record.arrow_schema()
    columns = {
        "split": pa.repeat(pa.scalar(shard.split), rows.num_rows),
        "source_row": rows.column("source_row"),
        "variant": rows.column("variant"),
        "origin": rows.column("origin"),
        "sentence1": rows.column("sentence1"),
        "sentence2": rows.column("sentence2"),
        "ids1": pa.array([row.ids1 for row in inputs], schema.field("ids1").type),
        "ids2": pa.array([row.ids2 if record.is_pair else None for row in inputs], schema.field("ids2").type),
        "text_hash": pa.array(hashes, schema.field("text_hash").type),
        "label": rows.column("label"),
        "score": rows.column("score"),
        "logits": pa.FixedSizeListArray.from_arrays(pa.array(logits_NC.ravel()), logits_NC.shape[1]),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def text_hashes(rows: pa.Table, tokenizer_sha256: str) -> list[bytes]:
    """The text hash of each row."""
    first, second = sentences(rows)
    seconds: Sequence[str | None] = second or [None] * len(first)
    return [text_hash(tokenizer_sha256, a, b) for a, b in zip(first, seconds, strict=True)]
