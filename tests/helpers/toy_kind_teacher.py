"""The toy kind of rows in stage one: a classifier reads the span of each sentence, which is all but its last token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Ints, Ragged
from pipeline.sets.kinds.examples import text_hashes
from pipeline.sets.record import SetRecord, staged
from pipeline.sets.record_parts import Shard
from pipeline.sets.signals import Logits, Signals
from pipeline.sources import load_source, sentences
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import Tokenized
from teacher.dump.known_logits import Inputs, Known, LogitsJob
from teacher.dump.rows import LIBRARIES, Rows, all_shards, of_task
from teacher.dump.shard_jobs import Advance
from teacher.dump.teacher_dump import TaskDump
from teacher.models.batches import framed
from teacher.models.classifier import Teacher, teacher_logits
from teacher.settings import DumpSettings, LabelLogits
from tests.helpers.toy_kind import SpanSet


class SpansDump(TaskDump):
    """Logits of spans of a task's texts."""

    set_type: ClassVar = SpanSet

    def __init__(self, task: Task, config: DumpSettings, command: str) -> None:
        logits = config.rows.signal
        assert isinstance(logits, LabelLogits)
        source = load_source(task, config.rows.data)
        super().__init__(config.run, config.place, task.name, command, logits, task, source)
        self.rows = Rows(self.source, None)

    def planned_shards(self) -> tuple[Shard, ...]:
        return all_shards(self.source, self.rows_per_shard, folder="spans")

    def check_labels(self, split: str, rows: pa.Table) -> None:
        """The toy teacher is untrained, so any order of labels is as good as another."""

    def planned(self) -> SetRecord:
        settings, parts = of_task("logits", self.root.name, self.forward, self.task, self.source, self.model)
        return staged(
            settings | {"spans": "all but the last token"},
            self.command,
            LIBRARIES,
            kind="spans",
            signals=Signals(logits=Logits(target=self.model.target)),
            max_seq_length=self.forward.max_seq_length,
            shards=self.planned_shards(),
            **parts,
        )

    def logits_job(self, record: SetRecord) -> "SpansJob":
        known = Known.empty(self.model.target.num_logits)
        return SpansJob(record, self.model, self.forward.precision, self.max_tokens, known)


@dataclass(frozen=True)
class SpanInputs(Inputs):
    """Spans on their way through the teacher, and the sentences that they are in."""

    ids: list[list[int]]


@dataclass(frozen=True)
class SpansJob(LogitsJob[SpanInputs]):
    """Writes spans."""

    model: Teacher

    def prepare(self, rows: pa.Table) -> SpanInputs:
        whole = self.model.reader.tokenize(*sentences(rows), self.record.max_seq_length)
        ids = [row.ids1 for row in whole]
        spans = framed(self.model, Ragged.of([row[:-1] for row in ids]))
        return SpanInputs(rows, self.hashes(rows), spans, ids)

    def hashes(self, rows: pa.Table) -> list[bytes]:
        return text_hashes(rows, self.record.tokenizer.sha256)

    def predict(self, inputs: Sequence[Tokenized], advance: Advance) -> Floats:
        return teacher_logits(self.model, inputs, self.max_tokens, advance)

    def lengths(self, inputs: Sequence[Tokenized]) -> Ints:
        return np.ones(len(inputs), dtype=np.int64)

    def table(self, shard: Shard, inputs: SpanInputs, logits_TC: Floats) -> pa.Table:
        schema = self.record.arrow_schema()
        columns = {
            "split": pa.repeat(pa.scalar(shard.split), len(inputs.ids)),
            "source_row": inputs.rows.column("source_row"),
            "ids": pa.array(inputs.ids, schema.field("ids").type),
            "start": pa.repeat(pa.scalar(0, pa.int32()), len(inputs.ids)),
            "stop": pa.array([len(row) - 1 for row in inputs.ids], pa.int32()),
            "label": inputs.rows.column("label"),
            "logits": pa.FixedSizeListArray.from_arrays(pa.array(logits_TC.ravel()), logits_TC.shape[1]),
        }
        return pa.table([columns[name] for name in schema.names], schema=schema)
