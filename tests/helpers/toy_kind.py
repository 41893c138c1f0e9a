"""A fifth kind of rows, unknown to the product: sentences with a span, and whether the span is an answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrays import id_type
from pipeline.sets.reader import ExampleSet, GroupedSet
from pipeline.sets.record import Scores, SetRecord, staged
from pipeline.sets.record_parts import Shard
from pipeline.sets.row_kind import RowKind, ids_problem, signals_problem
from pipeline.sets.signals.logits import logits_of
from pipeline.sets.writer import complete_and_verify, plan_shards, start_set, write_shard

CARD = """---
{{ card_data }}
---

# {{ record.name }}

Spans of the sentences of {{ record.dataset_name }}, by {{ record.teacher.name }}.

{{ splits() }}
"""


class SpanSet(GroupedSet):
    """An opened set of spans."""

    kind = "spans"
    advice = "for this a set of spans is needed"

    def scores(self) -> Scores:
        """How often the larger logit is that of the gold answer."""
        scores = {}
        for split in self.splits:
            rows = pa.concat_tables([rows for shard in self.shards(split) for rows in self.read_shard(shard)])
            said_N = logits_of(rows, self.record.target.num_logits).argmax(axis=1)
            scores[split] = {"accuracy": float((said_N == rows.column("label").to_numpy()).mean())}
        return scores


class SpansKind(RowKind):
    """A span from token ``start`` to token ``stop`` (exclusive) of each sentence; its label is no (0) or yes (1)."""

    name = "spans"
    keys = ("split", "source_row")
    signals = frozenset({"logits"})
    needs = frozenset({"task"})
    set_type = SpanSet
    page_title = "set of spans"

    def columns(self, record: SetRecord) -> list[pa.Field]:
        return [
            pa.field("split", pa.string(), nullable=False),
            pa.field("source_row", pa.int64(), nullable=False),
            pa.field("ids", pa.list_(id_type(record.tokenizer.vocabulary_size)), nullable=False),
            pa.field("start", pa.int32(), nullable=False),
            pa.field("stop", pa.int32(), nullable=False),
            pa.field("label", pa.int32(), nullable=False),
        ]

    def encodings(self, record: SetRecord) -> dict[str, Any]:
        return {"use_dictionary": ["split", "label"], "use_byte_stream_split": ["ids.list.element"]}

    def problem(self, record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
        ids = rows.column("ids").combine_chunks()
        start_N, stop_N = rows.column("start").to_numpy(), rows.column("stop").to_numpy()
        if ((start_N < 0) | (start_N >= stop_N) | (stop_N > np.diff(ids.offsets.to_numpy()))).any():
            return "a span is empty, or beyond its sentence"
        return ids_problem(record, "ids", ids) or signals_problem(record, rows)

    def summary(self, record: SetRecord) -> str:
        return f"Whether {record.num_rows:,} spans are answers, by {record.teacher.name}."

    def card_template(self) -> str:
        return CARD


def write_span_set(root: Path, examples: ExampleSet) -> SpanSet:
    """Writes the sentences of a set of examples, without their last token, as spans; the kind must be in `KINDS`."""
    record = examples.record
    planned = staged(
        record.settings | {"spans": "all but the last token"},
        "a test",
        base=record,
        name=root.name,
        kind="spans",
        shards=[
            shard
            for split, described in record.splits.items()
            for shard in plan_shards(split, described.rows, 7, folder="spans")
        ],
    )
    started = start_set(root, planned, examples.tokenizer_json())
    for shard in started.shards:
        write_shard(root, started, shard, [_table(started, shard, examples)])
    return SpanSet(root, complete_and_verify(root, started))


def _table(record: SetRecord, shard: Shard, examples: ExampleSet) -> pa.Table:
    where = f"source_row >= {shard.start} and source_row < {shard.stop}"
    columns = ("split", "source_row", "ids1", "0", "len(ids1)::int - 1", "label", "logits")
    return (
        examples.read(shard.split, columns, where)
        .rename_columns(record.arrow_schema().names)
        .cast(record.arrow_schema())
    )
