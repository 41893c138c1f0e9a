"""The sentences that a teacher encodes: those of a corpus's documents, or of a task's rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipeline.arrays import Ragged, stacked
from pipeline.sets.kinds.sentences import Sentences
from pipeline.sets.record_parts import Setting, Shard, SplitRecord
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.task import TRAIN, Corpus, Task, load_task
from teacher.corpus import text
from teacher.corpus.text import SPLITS, Text, open_text
from teacher.dump import rows as task_rows
from teacher.models.loaded import LoadedTokenizer
from teacher.settings import DumpCorpus, DumpTask

# Consecutive documents per sample, since reading them is cheaper than single ones.
SAMPLED_DOCUMENTS = 8


@dataclass(frozen=True)
class Sample:
    """A sample of sentences, and the factor to the number of all sentences."""

    ids: Ragged
    multiplier: float


class SentenceRows(Protocol):
    """The source of sentences."""

    @property
    def subject(self) -> Task | Corpus:
        """The task or the corpus."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """The packages that determine the ends of sentences."""

    def parts(self) -> dict[str, Any]:
        """Returns the fields of a record about them."""

    def settings(self) -> dict[str, Setting]:
        """Returns everything that determines them, except the tokenizer and the maximum length."""

    def shards(self, rows_per_shard: int) -> tuple[Shard, ...]:
        """Returns the planned files."""

    def read(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sentences]:
        """The sentences of a split's source rows ``start`` to ``stop`` (exclusive), in batches."""

    def count(self, split: str, start: int, stop: int) -> int:
        """Returns how many of the source rows ``start`` to ``stop`` (exclusive) belong to a split."""

    def hold(self, shard: Shard) -> "SentenceRows":
        """Returns the input of one shard, in memory."""

    def sample(self, tokens: LoadedTokenizer, num_rows: int) -> Sample:
        """Returns sentences of about so many source rows, spread evenly over the training rows."""


@dataclass(frozen=True)
class CorpusSentences:
    """The sentences of a corpus's documents."""

    text: Text

    @property
    def libraries(self) -> tuple[str, ...]:
        """See `SentenceRows`."""
        return ("sentencex",)

    @property
    def subject(self) -> Corpus:
        """See `SentenceRows`."""
        return self.text.corpus

    def parts(self) -> dict[str, Any]:
        """See `SentenceRows`."""
        documents = self.text.documents
        described = SplitRecord(rows=documents.num_documents, rows_sha256=documents.sha256)
        return {
            "corpus": text.corpus_record(self.text),
            "source": documents.description,
            "splits": dict.fromkeys(SPLITS, described),
        }

    def settings(self) -> dict[str, Setting]:
        """See `SentenceRows`."""
        return {
            "documents": self.text.documents.sha256,
            **text.corpus_settings(text.corpus_record(self.text)),
            "cut": text.how_cut(),
        }

    def shards(self, rows_per_shard: int) -> tuple[Shard, ...]:
        """See `SentenceRows`."""
        return text.document_shards(self.text, rows_per_shard, "sentences")

    def read(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sentences]:
        """See `SentenceRows`."""
        for cut in self.text.sequences(tokens, split, start, stop):
            yield Sentences(cut.source_row_N, cut.piece_N, cut.ids)

    def count(self, split: str, start: int, stop: int) -> int:
        """See `SentenceRows`."""
        return self.text.count(split, start, stop)

    def hold(self, shard: Shard) -> "CorpusSentences":
        """See `SentenceRows`."""
        return CorpusSentences(self.text.hold(shard))

    def sample(self, tokens: LoadedTokenizer, num_rows: int) -> Sample:
        """See `SentenceRows`."""
        total, every = self.text.documents.num_documents, self.text.flags.validation_every
        num_blocks = -(-min(total, num_rows) // SAMPLED_DOCUMENTS)
        starts = np.unique(np.linspace(0, max(0, total - SAMPLED_DOCUMENTS), num_blocks).astype(int)).tolist()
        stops = [min(start + SAMPLED_DOCUMENTS, total) for start in starts]
        ids = [
            part.ids
            for start, stop in zip(starts, stops, strict=True)
            for part in self.read(tokens, TRAIN, start, stop)
        ]
        looked_at = sum(stops) - sum(starts)
        # Only training documents were read, so the estimate is scaled up by the share of validation documents.
        return Sample(stacked([Ragged.of([]), *ids]), total / looked_at * every / (every - 1))


@dataclass(frozen=True)
class TaskSentences:
    """The sentences of a task's rows. A pair has both.

    Attributes:
        task: the task.
        source: its rows.
        max_seq_length: longest input in tokens.
        first: the position of the first row of ``source`` among all rows of the split.
    """

    task: Task
    source: Source
    max_seq_length: int
    first: int = 0

    @property
    def libraries(self) -> tuple[str, ...]:
        """See `SentenceRows`."""
        return ()

    @property
    def subject(self) -> Task:
        """See `SentenceRows`."""
        return self.task

    def parts(self) -> dict[str, Any]:
        """See `SentenceRows`."""
        return {
            "task": task_rows.task_record(self.task, self.source),
            "source": self.source.description,
            "splits": task_rows.split_records(self.task, self.source),
            "notes": tuple(self.source.warnings),
        }

    def settings(self) -> dict[str, Setting]:
        """See `SentenceRows`."""
        splits = task_rows.split_records(self.task, self.source)
        return {
            "task": f"{self.task.name} version {self.task.version}",
            **{f"source.{split}": record.rows_sha256 for split, record in splits.items()},
        }

    def shards(self, rows_per_shard: int) -> tuple[Shard, ...]:
        """See `SentenceRows`."""
        return task_rows.all_shards(self.source, rows_per_shard, folder="sentences")

    def read(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sentences]:
        """See `SentenceRows`."""
        rows = self.source.splits[split].slice(start - self.first, stop - start)
        texts = [part for part in sentences(rows) if part is not None]
        read = stacked([tokens.reader.read(part, None, self.max_seq_length)[0] for part in texts])
        row_N = np.repeat(np.arange(rows.num_rows), len(texts))
        piece_N = np.tile(np.arange(len(texts)), rows.num_rows)
        source_row_N = rows.column("source_row").to_numpy()[row_N]
        yield Sentences(source_row_N, piece_N, read.take(row_N + piece_N * rows.num_rows))

    def count(self, split: str, start: int, stop: int) -> int:
        """See `SentenceRows`."""
        return stop - start

    def hold(self, shard: Shard) -> "TaskSentences":
        """See `SentenceRows`."""
        # take() copies only these rows. A slice would be pickled together with the whole table.
        rows = self.source.splits[shard.split].take(pa.array(np.arange(shard.start, shard.stop)))
        source = replace(self.source, splits={shard.split: rows})
        return replace(self, source=source, first=shard.start)

    def sample(self, tokens: LoadedTokenizer, num_rows: int) -> Sample:
        """See `SentenceRows`."""
        sizes = {split: rows.num_rows for split, rows in self.source.splits.items()}
        split = TRAIN if TRAIN in sizes else max(sizes, key=sizes.__getitem__)
        places = np.unique(np.linspace(0, sizes[split] - 1, min(sizes[split], num_rows)).astype(int)).tolist()
        ids = [part.ids for place in places for part in self.read(tokens, split, place, place + 1)]
        return Sample(stacked(ids), sum(sizes.values()) / len(places))


def open_rows(rows: DumpTask | DumpCorpus, max_seq_length: int) -> SentenceRows:
    """Returns the sentences that the flags name.

    Raises:
        ConfigError: if there is no such task or corpus.
        DataError: if its rows or its text cannot be found or read.
    """
    if isinstance(rows, DumpCorpus):
        return CorpusSentences(open_text(rows, max_seq_length))
    task = load_task(rows.task, rows.manifest)
    return TaskSentences(task, load_source(task, rows.data, rows.split_names), max_seq_length)
