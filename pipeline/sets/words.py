"""The ``words`` files: a row per sentence, its words, its tokens, and the logits of each token.

Shapes: N sentences, T tokens of all of them, C logits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.parquet import Footer, parquet_writer
from pipeline.sets.examples import hash_of_texts
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard

if TYPE_CHECKING:
    from pipeline.text.word_pieces import Pieces


def words_table(record: SetRecord, shard: Shard, rows: pa.Table, pieces: "Pieces", logits_TC: Floats) -> pa.Table:
    """The table of a shard: sentences, their tokens and the logits of these side by side.

    Args:
        record: the set's record.
        shard: which rows of which split.
        rows: its source rows.
        pieces: the same rows in tokens.
        logits_TC: float32, in the task's label order.
    """
    schema = record.arrow_schema()
    words = rows.column("sentence1")
    each = pa.FixedSizeListArray.from_arrays(pa.array(logits_TC.ravel()), logits_TC.shape[1])
    columns = {
        "split": pa.repeat(pa.scalar(shard.split), rows.num_rows),
        "source_row": rows.column("source_row"),
        "words": words,
        "ids": pieces.ids.column(schema.field("ids").type.value_type),
        "word_ids": pieces.word_ids.column(pa.int32()),
        "text_hash": pa.array(words_hashes(record, words.to_pylist()), schema.field("text_hash").type),
        "label": rows.column("label"),
        "logits": pa.ListArray.from_arrays(pa.array(pieces.ids.offsets, pa.int32()), each),
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def words_hashes(record: SetRecord, sentences: Sequence[Sequence[str]]) -> list[bytes]:
    """The key of each sentence's words under the set's tokenizer."""
    return [hash_of_texts(record.tokenizer.sha256, *words) for words in sentences]


def write_words(path: Path, table: pa.Table, footer: Footer) -> None:
    """Writes a shard; logits byte by byte, as those of examples."""
    with parquet_writer(
        path,
        table.schema,
        footer,
        use_dictionary=["split", "words.list.element", "word_ids.list.element", "label.list.element"],
        use_byte_stream_split=["ids.list.element", "logits.list.element.list.element"],
        write_statistics=["split", "source_row"],
    ) as writer:
        writer.write_table(table)
