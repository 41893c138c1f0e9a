"""Sets of sentences: their rows, and ways to spoil them with an honest record."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pipeline.files import sha256
from pipeline.parquet import read_groups
from pipeline.sets.files import read_statistics
from pipeline.sets.kinds.sentences import SentenceSet
from pipeline.sets.record import SetRecord
from pipeline.sets.write import write_shard


def rows_of(root: Path, split: str) -> pa.Table:
    """All rows of a split, in order."""
    sentence_set = SentenceSet.open(root)
    groups = [group for shard in sentence_set.shards(split) for group in sentence_set.read_shard(shard)]
    return pa.concat_tables(groups)


def rewrite(sentence_set: SentenceSet, change: Callable[[pa.Table], pa.Table], number: int = 0) -> SetRecord:
    """Changes the rows of a shard, with the right footer and an honest record of its bytes and rows."""
    record, shard = sentence_set.record, sentence_set.record.shards[number]
    path = sentence_set.root / shard.path
    table, statistics = change(pa.concat_tables(read_groups(path))), read_statistics(path)
    write_shard(sentence_set.root, record, shard, [table], statistics)
    measured = {"rows": table.num_rows, "bytes": path.stat().st_size, "sha256": sha256(path)}
    shards = [*record.shards]
    shards[number] = shard.model_copy(update=measured)
    return record.model_copy(update={"shards": tuple(shards)})


def with_value(name: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    """A change of one value of a column."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        values = table.column(name).to_pylist()
        values[row] = value
        field = table.schema.field(place)
        return table.set_column(place, field, pa.array(values, field.type))

    return change
