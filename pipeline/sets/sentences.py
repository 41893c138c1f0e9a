"""The ``sentences`` files: a row per sentence, its ids and its vector.

Shapes: R rows, H width of a vector.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.arrays import Floats, Ints, Ragged
from pipeline.parquet import Footer, parquet_writer
from pipeline.sets.record import SetRecord
from pipeline.sets.shard_file import STATISTICS_KEY

SENTENCE_KEYS = ("split", "source_row", "piece")
VECTOR_LEAF = "vector.list.element"
SENTENCES_PER_GROUP = 4096  # asked about, written and later read together
Statistics = dict[str, float]


@dataclass(frozen=True)
class Sentences:
    """Sentences without their vectors.

    Attributes:
        source_row_R: the document or the task's row that a sentence is of.
        piece_R: its number there: of a pair 0 and 1.
        ids: its tokens, without special tokens.
    """

    source_row_R: Ints
    piece_R: Ints
    ids: Ragged

    def __len__(self) -> int:
        return len(self.source_row_R)

    def take(self, rows: Ints) -> "Sentences":
        """The sentences of these numbers, in their order."""
        return Sentences(self.source_row_R[rows], self.piece_R[rows], self.ids.take(rows))


def sentences_table(record: SetRecord, split: str, rows: Sentences, vectors: Mapping[str, pa.Array]) -> pa.Table:
    """Puts sentences and the codec's columns of their vectors together."""
    schema = record.arrow_schema()
    columns = {
        "split": pa.repeat(pa.scalar(split), len(rows)),
        "source_row": pa.array(rows.source_row_R),
        "piece": pa.array(rows.piece_R, pa.int32()),
        "ids": rows.ids.column(schema.field("ids").type.value_type),
        **vectors,
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def write_sentences(
    path: Path, record: SetRecord, groups: Iterable[pa.Table], footer: Footer, statistics: Statistics
) -> None:
    """Writes a shard, a row group per table: never more than one of them is in memory.

    Args:
        path: the file.
        record: of its set.
        groups: its rows.
        footer: what it belongs to.
        statistics: sums over its rows, which may still grow while ``groups`` are made; kept in the footer.
    """
    schema = record.arrow_schema()
    # Parquet widens int8 to four bytes; a dictionary keeps it at one
    is_small = schema.field("vector").type.value_type == pa.int8()
    with parquet_writer(
        path,
        schema,
        footer,
        use_dictionary=["split", *([VECTOR_LEAF] if is_small else [])],
        use_byte_stream_split=["ids.list.element", *([] if is_small else [VECTOR_LEAF])],
        write_statistics=["split", "source_row", "piece"],
    ) as writer:
        for table in groups:
            writer.write_table(table)
        writer.add_key_value_metadata({STATISTICS_KEY: json.dumps(statistics)})


def no_vector_statistics() -> Statistics:
    """The sums of `add_statistics` before the first vector, 0 each."""
    return dict.fromkeys(("sentences", "tokens", "squares", "errors"), 0.0)


def add_statistics(statistics: Statistics, rows: Sentences, said_RH: Floats, kept_RH: Floats) -> None:
    """Adds sentences, their tokens, the squares of their vectors and the squared errors of what is kept of them."""
    statistics["sentences"] += len(rows)
    statistics["tokens"] += len(rows.ids.flat)
    statistics["squares"] += float((said_RH.astype("float64") ** 2).sum())
    statistics["errors"] += float(((said_RH.astype("float64") - kept_RH) ** 2).sum())
