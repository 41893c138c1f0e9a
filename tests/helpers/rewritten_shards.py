"""Shards of a set changed consistently: with the right footer and an honest record of their bytes."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files import sha256
from pipeline.sets.files import footer_of
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.write import finish_set
from tests.helpers.shards import write_examples


def recorded(logit_set: ExampleSet, number: int, **changes: object) -> SetRecord:
    """The record after someone also wrote a changed shard's size and hash into distill.json."""
    shards = list(logit_set.record.shards)
    path = logit_set.root / shards[number].path
    update = {"bytes": path.stat().st_size, "sha256": sha256(path), **changes}
    shards[number] = shards[number].model_copy(update=update)
    return logit_set.record.model_copy(update={"shards": tuple(shards)})


def rewrite(logit_set: ExampleSet, change: Callable[[pa.Table], pa.Table], number: int = 3) -> SetRecord:
    """Changes the rows of a shard, with the right footer and an honest record of its bytes."""
    shard = logit_set.record.shards[number]
    table = change(pq.read_table(logit_set.root / shard.path, partitioning=None))
    write_examples(logit_set.root / shard.path, table, footer_of(logit_set.record, shard))
    return recorded(logit_set, number, rows=table.num_rows)


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), table.schema.field(name), values)


def with_logit(table: pa.Table, value: float) -> pa.Table:
    logits = logits_of(table, 2)
    logits[5, 1] = value
    return with_column(table, "logits", pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), 2))


def rewrite_logit(logit_set: ExampleSet, number: int = 3) -> str:
    """Rewrites a shard with another logit, consistently: a set of the same settings with other bytes."""
    record = rewrite(logit_set, lambda table: with_logit(table, 9), number)
    finish_set(logit_set.root, record, record.scores)
    return record.shards[number].path
