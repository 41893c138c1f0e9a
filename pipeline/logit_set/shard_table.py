"""One shard's rows as an Arrow table with the columns of the format."""

from collections.abc import Sequence

import pyarrow as pa

from pipeline.logit_set.manifest import ExamplesManifest, Shard
from pipeline.logit_set.schema import examples_schema, text_hash
from pipeline.sources import sentences
from pipeline.targets import Floats
from pipeline.tokenization import Tokenized


def shard_table(
    manifest: ExamplesManifest,
    shard: Shard,
    rows: pa.Table,
    hashes: Sequence[bytes],
    inputs: Sequence[Tokenized],
    logits_NC: Floats,
) -> pa.Table:
    """Puts a shard together.

    Args:
        manifest: the set's manifest.
        shard: which rows of which split.
        rows: its rows, variants and all.
        hashes: their text hashes.
        inputs: the same rows in tokens.
        logits_NC: float32, the same rows' logits in the task's label order.

    Returns:
        The table, in the order of the rows.
    """
    schema = examples_schema(manifest.target.num_logits, manifest.tokenizer.vocabulary_size)
    is_pair = manifest.task.is_pair
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
