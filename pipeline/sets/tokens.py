"""The ``tokens`` files: a row per masked copy of a sequence, with a list entry per masked position.

Shapes: R rows, P masked positions of all rows.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrays import Floats64, Ints, Ragged, hashed, ragged, uniform
from pipeline.parquet import Footer, parquet_writer, read_footer
from pipeline.sets.codecs import Codec, Predictions
from pipeline.sets.row_kinds import token_columns
from pipeline.sets.shard_file import STATISTICS_KEY

if TYPE_CHECKING:
    import torch

TOKEN_KEYS = ("split", "source_row", "piece", "copy")
BYTES_PER_GROUP = 2**26
MAX_ROWS_PER_GROUP = 4096
Statistics = dict[str, float]

MOST_NATS = 700  # whose exponential is still a float
POSITIONS_PER_ROW = 5  # of a sentence; only the size of row groups hangs on it


@dataclass(frozen=True)
class MaskedRows:
    """Masked copies of sequences, without predictions.

    Attributes:
        source_row_R: the document that the sequence begins in.
        piece_R: the sequence's number among those that begin there.
        copy_R: the number of the copy.
        ids: what was read, without special tokens.
        positions: the masked places, ascending.
        targets: what stood there.
    """

    source_row_R: Ints
    piece_R: Ints
    copy_R: Ints
    ids: Ragged
    positions: Ragged
    targets: Ragged

    def __len__(self) -> int:
        return len(self.source_row_R)


def tokens_schema(codec: Codec) -> pa.Schema:
    """The columns of a set with this codec."""
    return pa.schema([*token_columns(codec.vocabulary_size), *codec.columns()])


def tokens_table(codec: Codec, split: str, rows: MaskedRows, predictions: Mapping[str, pa.Array]) -> pa.Table:
    """Puts rows and what the teacher said about their positions together.

    Args:
        codec: how it is stored.
        split: the rows' split.
        rows: the rows.
        predictions: the codec's columns, an entry per position of all rows.
    """
    schema = tokens_schema(codec)
    offsets = pa.array(rows.positions.offsets, pa.int32())
    columns = {
        "split": pa.repeat(pa.scalar(split), len(rows)),
        "source_row": pa.array(rows.source_row_R),
        "piece": pa.array(rows.piece_R, pa.int32()),
        "copy": pa.array(rows.copy_R, pa.int32()),
        "ids": rows.ids.column(schema.field("ids").type.value_type),
        "positions": rows.positions.column(pa.uint16()),
        "targets": rows.targets.column(schema.field("targets").type.value_type),
        **{name: pa.ListArray.from_arrays(offsets, column) for name, column in predictions.items()},
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def split_table(table: pa.Table) -> tuple[MaskedRows, dict[str, pa.Array]]:
    """Takes a table apart again: its rows, and the codec's columns with an entry per position."""
    codec_names = table.schema.names[table.schema.get_field_index("targets") + 1 :]
    return masked_rows(table), {name: table.column(name).combine_chunks().flatten() for name in codec_names}


def masked_rows(table: pa.Table) -> MaskedRows:
    """The rows of a table, without the codec's columns."""
    numbers = (table.column(name).to_numpy().astype(np.int64) for name in ("source_row", "piece", "copy"))
    lists = (ragged(table.column(name)) for name in ("ids", "positions", "targets"))
    return MaskedRows(*numbers, *lists)


def rows_per_group(codec: Codec) -> int:
    """Rows that are encoded, written and later read together: a bounded number of bytes."""
    bytes_per_row = POSITIONS_PER_ROW * codec.num_bytes()
    return int(min(MAX_ROWS_PER_GROUP, max(16, BYTES_PER_GROUP // bytes_per_row)))


def write_tokens(path: Path, codec: Codec, groups: Iterable[pa.Table], footer: Footer, statistics: Statistics) -> None:
    """Writes a shard, a row group per table: never more than one of them is in memory.

    Args:
        path: the file.
        codec: how distributions are stored.
        groups: its rows.
        footer: what it belongs to.
        statistics: sums over its positions, which may still grow while ``groups`` are made; kept in the footer.
    """
    fields = codec.fields().items()
    small = [_leaf(name, kind) for name, kind in fields if _innermost(kind) == pa.uint8()]
    split_bytes = [_leaf(name, kind) for name, kind in fields if _innermost(kind) != pa.uint8()]
    split_bytes += ["ids.list.element", "targets.list.element"]
    with parquet_writer(
        path,
        tokens_schema(codec),
        footer,
        use_dictionary=["split", "copy", "positions.list.element", *small],
        use_byte_stream_split=split_bytes,
        write_statistics=["split", "source_row", "copy"],
    ) as writer:
        for table in groups:
            writer.write_table(table)
        writer.add_key_value_metadata({STATISTICS_KEY: json.dumps(statistics)})


def _leaf(name: str, kind: pa.DataType) -> str:
    """Parquet's name of a codec's column: an entry per position, which may be a list."""
    return f"{name}.list.element" + (".list.element" if pa.types.is_list(kind) else "")


def _innermost(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def read_statistics(path: Path) -> Statistics:
    """The sums in a shard's footer."""
    return read_footer(path, STATISTICS_KEY)


def read_groups(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """A shard's row groups, one after the other, with all columns or some."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=columns)


DRAW = 3  # what the random numbers are for, beside those of masking


def draws(rows: MaskedRows, seed: int) -> Floats64:
    """A random number in (0, 1) for each masked position [P]: a function of the seed, the row's key and the place."""
    row_P = np.repeat(np.arange(len(rows)), rows.positions.lengths)
    key = (rows.source_row_R[row_P], rows.piece_R[row_P], rows.copy_R[row_P], rows.positions.flat)
    return uniform(hashed(seed, DRAW, *key))


def encode(
    codec: Codec, predictions: Predictions, target_P: "torch.Tensor", statistics: Statistics
) -> dict[str, pa.Array]:
    """The codec's columns for some positions; adds to the statistics.

    Args:
        codec: how to store it.
        predictions: of the teacher.
        target_P: int64, what stood there.
        statistics: receives positions, right guesses, nats of the targets, and the mass that is kept.

    Raises:
        BeyondHalfError: if a number that is kept as float16 is too large for it.
    """
    import torch

    with torch.autocast(target_P.device.type, enabled=False):
        columns, mass_P = codec.encode(predictions)
    nats_P = predictions.log_z_P - predictions.logits_PV.gather(1, target_P[:, None]).squeeze(1)
    sums = {
        "positions": len(target_P),
        "right": int((predictions.logits_PV.argmax(dim=1) == target_P).sum()),
        "nats": float(nats_P.double().sum()),
        "kept_mass": float(mass_P.double().sum()),
    }
    for name, value in sums.items():
        statistics[name] += value
    return columns


def no_statistics() -> Statistics:
    """The sums of `encode` before the first position, 0 each."""
    return dict.fromkeys(("positions", "right", "nats", "kept_mass"), 0.0)


def perplexity(nats: float) -> float:
    """The perplexity of a mean of nats, of very many that of `MOST_NATS`."""
    return math.exp(min(nats, MOST_NATS))
