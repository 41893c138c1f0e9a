"""Reading a set a row group at a time, each checked before it is used."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import IntegrityError
from pipeline.parquet import read_metadata
from pipeline.sets.reader import LogitSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.tokens import read_groups, read_statistics
from pipeline.sets.verify import require_shards

Group = tuple[Shard, int]  # a row group of a shard


@dataclass(frozen=True)
class GroupedSet(LogitSet):
    """An opened set that is too large to be read at once.

    Attributes:
        group_problem: what is wrong inside a row group of its kind of rows; None if nothing is.
    """

    group_problem: ClassVar[Callable[[SetRecord, pa.Table], str | None]]

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

    def totals(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Per split, what the footers of its shards add up to, with the ``bytes`` of the files."""
        for split in self.record.splits:
            paths = [self.root / shard.path for shard in self.shards(split)]
            sums = [read_statistics(path) | {"bytes": path.stat().st_size} for path in paths]
            yield split, {name: sum(part[name] for part in sums) for name in sums[0]}

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
        problem = type(self).group_problem(self.record, table)
        if problem:
            raise IntegrityError(f"{self.root / shard.path}: {problem}")
        return table
