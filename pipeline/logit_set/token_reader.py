"""Reading a set of tokens: checked, a row group at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ConfigError, IntegrityError
from pipeline.logit_set.codecs import Decoder
from pipeline.logit_set.reader import OpenSet, usable_record
from pipeline.logit_set.record import Scores
from pipeline.logit_set.record_parts import Shard
from pipeline.logit_set.shard_file import read_metadata
from pipeline.logit_set.tokens import read_groups, read_statistics
from pipeline.logit_set.verify import require_shards
from pipeline.logit_set.verify_tokens import group_problem

Group = tuple[Shard, int]  # a row group of a shard


@dataclass(frozen=True)
class TokenSet(OpenSet):
    """An opened set of tokens."""

    def decoder(self) -> Decoder | None:
        """The teacher's last layer, where the codec needs it.

        Raises:
            IntegrityError: if the file is missing or was changed.
        """
        return self.record.signals.mlm.read_decoder(self.root) if self.record.signals.mlm else None

    def check_temperature(self, temperature: float) -> None:
        """Raises ConfigError if the distributions at this temperature cannot be had from what is stored."""
        codec = self.record.codec
        if not codec.honours(temperature):
            kept = codec.temperature_kept
            raise ConfigError(
                f"--temperature {temperature:g}: codec {str(codec)!r} only knows the distribution at {kept:g}; "
                f"use --temperature {kept:g}, or a set with codec hidden or dense"
            )

    def shards(self, split: str) -> list[Shard]:
        """The shards of a split, in row order.

        Raises:
            ConfigError: if there is no such split.
        """
        self.check_split(split)
        return self.record.shards_of(split)

    def groups(self, split: str) -> list[tuple[Group, int]]:
        """The row groups of a split in order, each with its number of rows; reads footers alone."""
        groups: list[tuple[Group, int]] = []
        for shard in self.shards(split):
            metadata = read_metadata(self.root / shard.path)
            groups += [((shard, k), metadata.row_group(k).num_rows) for k in range(metadata.num_row_groups)]
        return groups

    def check_shards(self, shards: list[Shard]) -> None:
        """Raises IntegrityError unless files are byte for byte what the record says, and have a set's columns."""
        require_shards(self.root, self.record, shards)

    def read_group(self, group: Group) -> pa.Table:
        """All columns of a row group.

        Raises:
            IntegrityError: if its rows cannot be those of a set.
        """
        shard, number = group
        with pq.ParquetFile(self.root / shard.path) as file:
            return self._sound(shard, file.read_row_group(number))

    def read_shard(self, shard: Shard) -> Iterator[pa.Table]:
        """The row groups of a shard, one after the other, once it has been checked."""
        self.check_shards([shard])
        for table in read_groups(self.root / shard.path):
            yield self._sound(shard, table)

    def _sound(self, shard: Shard, table: pa.Table) -> pa.Table:
        """The row group, if what a ``verified`` of somebody else's says of it is true."""
        problem = group_problem(self.record, table)
        if problem:
            raise IntegrityError(f"{self.root / shard.path}: {problem}")
        return table

    def scores(self) -> Scores:
        """Per split, from the footers: positions, what the teacher guesses right, what is kept and what it takes."""
        scores: Scores = {}
        for split in self.record.splits:
            paths = [self.root / shard.path for shard in self.shards(split)]
            sums = [read_statistics(path) for path in paths]
            total = {name: sum(part[name] for part in sums) for name in sums[0]}
            if total["positions"]:
                scores[split] = {
                    "positions": total["positions"],
                    "masked_accuracy": total["right"] / total["positions"],
                    "perplexity": math.exp(total["nats"] / total["positions"]),
                    "kept_mass": total["kept_mass"] / total["positions"],
                    "bytes_per_position": sum(path.stat().st_size for path in paths) / total["positions"],
                }
        return scores


def open_tokens(path: Path, allow_unverified: bool = False) -> TokenSet:
    """Opens a set of tokens for use.

    Raises:
        ConfigError: if it is of another kind.
        IntegrityError: if it is not a set, or its state is not ``verified`` and that is not allowed.
    """
    advice = "it is for `distill train-student`; for this a set of a corpus is needed"
    return TokenSet(path, usable_record(path, allow_unverified, "tokens", advice))
