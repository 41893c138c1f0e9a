"""Columns of the ``examples`` files and how they are encoded."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.logit_set.record import ExamplesRecord, SetRecord, Shard, TokensRecord, has_text
from pipeline.logit_set.shard_file import Footer, id_type, parquet_writer
from pipeline.sources import sentences
from pipeline.text.tokenizer import Tokenized

TEXT_HASH_BYTES = 16
DICTIONARY_COLUMNS = ("split", "origin", "label", "score", "variant")
BYTE_SPLIT_COLUMNS = ("ids1.list.element", "ids2.list.element", "logits.list.element")
TEXT_COLUMNS = ("sentence1", "sentence2", "ids1", "ids2")


def examples_schema(num_logits: int, vocabulary_size: int, has_text: bool = True) -> pa.Schema:
    """The columns of a set with ``num_logits`` logits a row; ids are uint16 where the vocabulary fits.

    Without text there are no ids either: a tokenizer turns them back into the text.
    """
    ids = pa.list_(id_type(vocabulary_size))
    fields = [
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
    return pa.schema([field for field in fields if has_text or field.name not in TEXT_COLUMNS])


def set_schema(record: SetRecord) -> pa.Schema:
    """The columns of the files of a set."""
    if isinstance(record, TokensRecord):
        from pipeline.logit_set.tokens import tokens_schema  # codecs need torch, which other sets do without

        return tokens_schema(record.codec)
    assert isinstance(record, ExamplesRecord)
    return examples_schema(record.target.num_logits, record.tokenizer.vocabulary_size, has_text(record))


def text_hash(tokenizer_sha256: str, sentence1: str, sentence2: str | None) -> bytes:
    """Key of an input's text under a tokenizer: 16 bytes of BLAKE2b, unambiguous between one sentence and two."""
    parts = [tokenizer_sha256, sentence1] if sentence2 is None else [tokenizer_sha256, sentence1, sentence2]
    digest = hashlib.blake2b(digest_size=TEXT_HASH_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def write_examples(path: Path, table: pa.Table, footer: Footer) -> None:
    """Writes a shard: ids and logits byte by byte, which compresses them best (ids a seventh better than a dictionary).

    DuckDB reads that encoding for integers and float32; for float16 it does not.
    """

    def there(columns: tuple[str, ...]) -> list[str]:
        return [name for name in columns if name.partition(".")[0] in table.column_names]

    with parquet_writer(
        path,
        table.schema,
        footer,
        use_dictionary=there(DICTIONARY_COLUMNS),
        use_byte_stream_split=there(BYTE_SPLIT_COLUMNS),
        write_statistics=["split", "source_row", "variant", "origin", "label"],
    ) as writer:
        writer.write_table(table)


def logits_of(table: pa.Table, num_logits: int) -> Floats:
    """The logits column as an array [N, C] of float32."""
    flat = table.column("logits").combine_chunks().flatten()
    return np.array(flat.to_numpy(zero_copy_only=False), dtype=np.float32).reshape(-1, num_logits)


def shard_table(
    record: ExamplesRecord,
    shard: Shard,
    rows: pa.Table,
    hashes: Sequence[bytes],
    inputs: Sequence[Tokenized],
    logits_NC: Floats,
) -> pa.Table:
    """Puts a shard together.

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
    schema = examples_schema(record.target.num_logits, record.tokenizer.vocabulary_size)
    is_pair = record.task.is_pair
    columns = {
        "split": pa.repeat(pa.scalar(shard.split), rows.num_rows),
        "source_row": rows.column("source_row"),
        "variant": rows.column("variant"),
        "origin": rows.column("origin"),
        "sentence1": rows.column("sentence1"),
        "sentence2": rows.column("sentence2"),
        "ids1": pa.array([row.ids1 for row in inputs], schema.field("ids1").type),
        "ids2": pa.array([row.ids2 if is_pair else None for row in inputs], schema.field("ids2").type),
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
