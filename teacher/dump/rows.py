"""What the teacher is asked about: a task's rows, variants of those of a split, and unlabelled rows after them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.sets.record_parts import MAX_SEQ_LENGTH, UNLABELLED, Shard
from pipeline.sources import Source, sentences
from pipeline.text.reader import TextReader
from teacher.augment.variants import Variants

COLUMNS = ["source_row", "variant", "origin", "sentence1", "sentence2", "label", "score"]


def source_rows(source: Source, shard: Shard) -> pa.Table:
    """The source rows that a shard is about."""
    return source.splits[shard.split].slice(shard.start, shard.stop - shard.start)


def num_own(source: Source, shard: Shard) -> int:
    """How many of the source rows of a shard are the task's own; the others come after them, and are unlabelled."""
    own: int = source.own(shard.split).num_rows
    return max(0, min(shard.stop, own) - shard.start)


def origins(source: Source, shard: Shard) -> pa.Array:
    """The origin of each source row of a shard."""
    own = num_own(source, shard)
    return pa.array(np.repeat(["original", UNLABELLED], [own, shard.stop - shard.start - own]), pa.string())


class ShardRows(Protocol):
    """Where the rows of shards come from."""

    def read(self, shard: Shard) -> pa.Table:
        """The rows of a shard by source row and variant; variants have no gold, which is wrong for them too often."""

    def count(self, shard: Shard) -> int:
        """About how many rows a shard has."""


@dataclass(frozen=True)
class HeldRows:
    """The rows of one shard, in memory."""

    table: pa.Table

    def read(self, shard: Shard) -> pa.Table:
        """See `ShardRows`."""
        return self.table

    def count(self, shard: Shard) -> int:
        """See `ShardRows`."""
        return int(self.table.num_rows)


@dataclass(frozen=True)
class Rows:
    """A task's rows, with variants or without."""

    source: Source
    variants: Variants | None

    def hold(self, shard: Shard) -> HeldRows:
        """The rows of a shard, and no others."""
        rows = self.read(shard)
        return HeldRows(rows.take(pa.array(np.arange(rows.num_rows))))  # a slice would be sent with all it is cut from

    def read(self, shard: Shard) -> pa.Table:
        """See `ShardRows`."""
        rows = source_rows(self.source, shard)
        rows = rows.append_column("variant", pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
        rows = rows.append_column("origin", origins(self.source, shard)).select(COLUMNS)
        if self.variants is None or shard.split != self.variants.record.split:
            return rows
        variants = self.variants.read(shard.start, shard.stop)
        for name in ("label", "score"):
            variants = variants.append_column(name, pa.nulls(variants.num_rows, rows.schema.field(name).type))
        both = pa.concat_tables([rows, variants.select(COLUMNS).cast(rows.schema)])
        return both.sort_by([("source_row", "ascending"), ("variant", "ascending")])

    def count(self, shard: Shard) -> int:
        """See `ShardRows`."""
        num_rows = shard.stop - shard.start
        if self.variants is None or shard.split != self.variants.record.split:
            return num_rows
        return num_rows + round(num_own(self.source, shard) * (self.variants.record.multiplier - 1))


def longest_row(source: ShardRows, shards: Sequence[Shard], reader: TextReader) -> int:
    """Tokens of the longest row of shards, special tokens counted in.

    Raises:
        DataError: if a set could not hold it.
    """
    longest = 0
    for shard in shards:
        rows = source.read(shard)
        first, second = sentences(rows)
        length_N = np.sum([part.lengths for part in reader.read(first, second, None)], axis=0)
        length_N = length_N + reader.tokenizer.num_special_tokens_to_add(second is not None)
        longest = max(longest, int(length_N.max(initial=0)))
        if longest > MAX_SEQ_LENGTH:
            number = rows.column("source_row")[int(length_N.argmax())].as_py()
            raise DataError(
                f"{shard.split}, row {number}: {longest:,} tokens, but a set holds at most {MAX_SEQ_LENGTH:,}"
            )
    return longest
