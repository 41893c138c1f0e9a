"""A fifth kind of rows, unknown to the product: sentences with a span, and whether the span is an answer.

This is its part for `pipeline`. Teachers are run on it in `tests.helpers.toy_kind_teacher`, and students are trained
on it in `tests.helpers.toy_kind_student`.

Shapes: N sentences, C logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest

from pipeline.arrays import Floats, Ints, Ragged, id_type, ragged
from pipeline.sets.kinds import SETS
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import GroupedSet
from pipeline.sets.record import Scores, SetRecord, staged
from pipeline.sets.record_parts import Shard
from pipeline.sets.registry import FORMATS, RowFormat
from pipeline.sets.row_kind import RowKind, ids_problem, signals_problem
from pipeline.sets.signals.rows import logits_of
from pipeline.sets.write import complete_and_verify, plan_shards, start_set, write_shard

CARD = """---
{{ card_data }}
---

# {{ record.name }}

Spans of the sentences of {{ record.dataset_name }}, by {{ record.teacher.name }}.

{{ splits() }}
"""


@dataclass(frozen=True)
class Spans:
    """Sentences with a span each.

    Attributes:
        ids: the sentences.
        inside: the tokens of their spans.
        label_N: whether the span is an answer.
        teacher_NC: float32 logits of the teacher.
    """

    ids: Ragged
    inside: Ragged
    label_N: Ints
    teacher_NC: Floats

    def __len__(self) -> int:
        return len(self.label_N)

    def without_teacher(self) -> Self:
        """The spans without logits."""
        return replace(self, teacher_NC=self.teacher_NC[:0])

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        """What a student reads: the sentences and their spans."""
        return self.ids, self.inside

    @property
    def weight_N(self) -> Floats:
        """Weights of the sentences in the loss: 1 each."""
        return np.ones(len(self), dtype=np.float32)

    def take(self, rows: Sequence[int] | Ints) -> "Spans":
        """Some of the sentences."""
        return Spans(self.ids.take(rows), self.inside.take(rows), self.label_N[rows], self.teacher_NC[rows])

    def accuracy(self, logits_NC: Floats) -> float:
        """How often the larger logit is that of the gold label."""
        return float((logits_NC.argmax(axis=1) == self.label_N).mean())


def _columns(vocabulary_size: int, gold_type: pa.DataType) -> list[pa.Field]:
    return [
        pa.field("split", pa.string(), nullable=False),
        pa.field("source_row", pa.int64(), nullable=False),
        pa.field("ids", pa.list_(id_type(vocabulary_size)), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("stop", pa.int32(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
    ]


class SpansKind(RowKind):
    """A span from token ``start`` to token ``stop`` (exclusive) of each sentence; its label is no (0) or yes (1)."""

    name = "spans"
    page_title = "set of spans"

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


class SpanSet(GroupedSet):
    """An opened set of spans."""

    row_kind = SpansKind()
    advice = "for this a set of spans is needed"

    def read(self, split: str) -> Spans:
        """The rows of a split, in order."""
        table = pa.concat_tables([rows for shard in self.shards(split) for rows in self.read_shard(shard)])
        ids, limits = ragged(table.column("ids")), (table.column("start").to_pylist(), table.column("stop").to_pylist())
        inside = Ragged.of([row[start:stop] for row, start, stop in zip(ids.lists(), *limits, strict=True)])
        logits_NC = logits_of(table, self.record.target.num_logits)
        return Spans(ids, inside, table.column("label").to_numpy().astype(np.int64), logits_NC)

    def scores(self) -> Scores:
        """How often the larger logit is that of the gold label."""
        splits = {split: self.read(split) for split in self.splits}
        return {split: {"accuracy": rows.accuracy(rows.teacher_NC)} for split, rows in splits.items()}


FORMAT = RowFormat(("split", "source_row"), _columns, signals=frozenset({"logits"}), needs=frozenset({"task"}))


def known(patch: pytest.MonkeyPatch) -> None:
    """Adds the kind to the tables of `pipeline.sets`."""
    patch.setitem(FORMATS, "spans", FORMAT)
    patch.setitem(SETS, "spans", SpanSet)


def write_span_set(root: Path, examples: ExampleSet) -> SpanSet:
    """Writes the sentences of a set of examples, without their last token, as spans; the kind must be `known`."""
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
            for shard in plan_shards(split, described.rows, 50, folder="spans")
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
