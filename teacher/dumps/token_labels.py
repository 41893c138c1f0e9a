"""Stage one on labelled words: writes a teacher's logits of every token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats, Ints
from pipeline.sets.kinds.token_labels import LabelledWords, TokenLabelSet, words_hashes, words_table
from pipeline.sets.record import Scores, SetRecord, staged
from pipeline.sets.record_parts import Shard
from pipeline.sets.signals import Signals, TokenLogits
from pipeline.sources import load_word_source
from pipeline.tasks.spans import word_scores
from pipeline.tasks.target import NO_LABEL, Target
from pipeline.tasks.task import Task
from pipeline.text.tokenizer import Tokenized, require_known_ids
from pipeline.text.word_pieces import Pieces
from teacher.dump.known_logits import Inputs, Known, LogitsJob
from teacher.dump.rows import LIBRARIES, Rows, all_shards, of_task
from teacher.dump.shard_jobs import Advance
from teacher.dump.teacher_dump import TaskDump
from teacher.models.batches import framed
from teacher.models.classifier import Teacher, labelled_words, pieces_of, token_logits
from teacher.models.label_order import check_label_order
from teacher.settings import DumpTask, LabelLogits, RunFlags, SetPlace

BYTES_PER_LOGIT = 4


class TokenLabelsDump(TaskDump):
    """Logits of the tokens of a task's labelled words."""

    set_type: ClassVar = TokenLabelSet

    def __init__(
        self, task: Task, rows: DumpTask, logits: LabelLogits, run: RunFlags, place: SetPlace, command: str
    ) -> None:
        source = load_word_source(task, rows.data, rows.split_names)
        super().__init__(run, place, task.name, command, logits, task, source)
        self.rows = Rows(self.source, None)

    @cached_property
    def expected_bytes(self) -> int:
        num_tokens, _ = self.estimated_tokens()
        return self.amount.expected_bytes + num_tokens * len(self.task.labels) * BYTES_PER_LOGIT

    def planned_shards(self) -> tuple[Shard, ...]:
        return all_shards(self.source, self.rows_per_shard, folder="token_labels")

    def check_labels(self, split: str, rows: pa.Table) -> None:
        teacher = self.model
        sample = labelled_words(teacher, rows, self.forward.max_seq_length, split, self.max_tokens)
        require_known_ids(teacher.tokenizer, sample.pieces.ids, f"teacher {teacher.name}")
        check_word_labels(teacher.target, teacher.name, teacher.labels, sample, self.is_stated)

    def planned(self) -> SetRecord:
        settings, parts = of_task("token_logits", self.root.name, self.forward, self.task, self.source, self.model)
        return staged(
            settings,
            self.command,
            LIBRARIES,
            kind="token_labels",
            signals=Signals(token_logits=TokenLogits(target=self.model.target)),
            max_seq_length=self.forward.max_seq_length,
            shards=self.planned_shards(),
            **parts,
        )

    def logits_job(self, record: SetRecord) -> "TokenLabelsJob":
        known = Known.empty(self.model.target.num_logits)
        return TokenLabelsJob(record, self.model, self.forward.precision, self.max_tokens, known)

    def scores(self, record: SetRecord) -> Scores:
        """Checks the teacher's label order on every gold label, too."""
        scores, stored, teacher = {}, TokenLabelSet(self.root, record), record.teacher
        for split in record.splits:
            rows = stored.read(split)
            check_word_labels(record.target, teacher.name, teacher.labels, rows, self.is_stated)
            scores[split] = word_scores(record.metrics, rows.tallies(rows.teacher_TC))
        return scores


def check_word_labels(
    target: Target, name: str, labels: tuple[str, ...], rows: LabelledWords, is_stated: bool = False
) -> None:
    """Checks a teacher's order of labels by the words with gold and a token."""
    # Only first tokens carry labels, and truncated words have no first token.
    gold_T = rows.gold_T
    has_gold_T = gold_T != NO_LABEL
    no_score = np.full(int(has_gold_T.sum()), np.nan, dtype=np.float32)
    check_label_order(target, name, labels, rows.teacher_TC[has_gold_T], gold_T[has_gold_T], no_score, is_stated)


@dataclass(frozen=True)
class WordInputs(Inputs):
    """Labelled sentences on their way through the teacher."""

    pieces: Pieces


@dataclass(frozen=True)
class TokenLabelsJob(LogitsJob[WordInputs]):
    """Writes labelled words."""

    model: Teacher

    def prepare(self, rows: pa.Table) -> WordInputs:
        pieces = pieces_of(self.model, rows, self.record.max_seq_length)
        return WordInputs(rows, self.hashes(rows), framed(self.model, pieces.ids), pieces)

    def hashes(self, rows: pa.Table) -> list[bytes]:
        return words_hashes(self.record, rows.column("sentence1").to_pylist())

    def predict(self, inputs: Sequence[Tokenized], advance: Advance) -> Floats:
        return token_logits(self.model, inputs, self.max_tokens, advance)

    def lengths(self, inputs: Sequence[Tokenized]) -> Ints:
        return np.array([len(row.ids1) for row in inputs], dtype=np.int64)

    def table(self, shard: Shard, inputs: WordInputs, logits_TC: Floats) -> pa.Table:
        return words_table(self.record, shard, inputs.rows, inputs.pieces, logits_TC)
