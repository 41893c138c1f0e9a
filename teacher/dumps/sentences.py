"""Stage one on sentences: writes an encoder's vector of each sentence as a set of sentences.

Shapes: N sentences, H hidden size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Ragged, stacked
from pipeline.devices import processes
from pipeline.errors import DataError, TeacherError
from pipeline.files import require_space, sha256, write_atomically
from pipeline.sets.codecs.vectors import BASIS_FILE, AnyVectorCodec, Basis, fit_basis, read_basis, vector_codec
from pipeline.sets.files import Statistics
from pipeline.sets.kinds.sentences import (
    SENTENCES_PER_GROUP,
    Sentences,
    add_statistics,
    no_vector_statistics,
    sentences_table,
)
from pipeline.sets.open import tokenizer_record
from pipeline.sets.record import FILE_NAME, SetRecord, read_set_record, staged
from pipeline.sets.record_parts import Setting, Shard, SplitRecord
from pipeline.sets.signals import Signals, Vectors
from pipeline.sources import Source, load_source, sentences
from pipeline.tasks.task import TRAIN, Corpus, Task, load_task
from pipeline.text.tokenizer import require_known_ids
from teacher.corpus.text import (
    SPLITS,
    Text,
    corpus_record,
    corpus_settings,
    document_shards,
    how_cut,
    open_text,
)
from teacher.dump.additions import add_encoders_token_vectors
from teacher.dump.driver import Executor
from teacher.dump.estimate import TOKENS_ALONE, Plan, classifier_seconds, memory_bytes, token_vectors_bytes
from teacher.dump.rows import LIBRARIES, all_shards, split_records, task_record, teacher_record
from teacher.dump.shard_jobs import Advance, RowJob
from teacher.dump.teacher_dump import TeacherDump
from teacher.models.batches import LONGEST_SHOWN
from teacher.models.encoder import SentenceEncoder, load_encoder, sentence_vectors, stated_pooling
from teacher.models.loaded import LoadedTokenizer, load_config, load_tokenizer
from teacher.settings import DumpCorpus, DumpTask, RunFlags, SetPlace, VectorFlags

SAMPLED_ROWS = 512  # source rows, for the size of the whole
# At most so many sentences are used to fit a basis.
BASIS_ROWS = 4096
# Consecutive documents per sample, since reading them is cheaper than single ones.
SAMPLED_DOCUMENTS = 8


@dataclass(frozen=True)
class Sample:
    """A sample of sentences, and the factor to the number of all sentences."""

    ids: Ragged
    multiplier: float


@dataclass(frozen=True)
class CorpusSentences:
    """The sentences of a corpus's documents."""

    text: Text

    @property
    def libraries(self) -> tuple[str, ...]:
        """The packages that determine the ends of sentences."""
        return ("sentencex",)

    @property
    def subject(self) -> Corpus:
        return self.text.corpus

    def parts(self) -> dict[str, Any]:
        """Returns the fields of a record about them."""
        documents = self.text.documents
        described = SplitRecord(rows=documents.num_documents, rows_sha256=documents.sha256)
        return {
            "corpus": corpus_record(self.text),
            "source": documents.description,
            "splits": dict.fromkeys(SPLITS, described),
        }

    def settings(self) -> dict[str, Setting]:
        """Returns everything that determines them, except the tokenizer and the maximum length."""
        return {
            "documents": self.text.documents.sha256,
            **corpus_settings(corpus_record(self.text)),
            "cut": how_cut(),
        }

    def shards(self, rows_per_shard: int) -> tuple[Shard, ...]:
        return document_shards(self.text, rows_per_shard, "sentences")

    def read(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sentences]:
        for cut in self.text.sequences(tokens, split, start, stop):
            yield Sentences(cut.source_row_N, cut.piece_N, cut.ids)

    def count(self, split: str, start: int, stop: int) -> int:
        """Returns how many of the source rows ``start`` to ``stop`` (exclusive) belong to a split."""
        return self.text.count(split, start, stop)

    def hold(self, shard: Shard) -> "CorpusSentences":
        return CorpusSentences(self.text.hold(shard))

    def sample(self, tokens: LoadedTokenizer, num_rows: int) -> Sample:
        """Returns sentences of about so many source rows, spread evenly over the training rows."""
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
    """The sentences of a task's rows, from the row ``first`` of the split on. A pair has both."""

    task: Task
    source: Source
    max_seq_length: int
    first: int = 0

    @property
    def libraries(self) -> tuple[str, ...]:
        return ()

    @property
    def subject(self) -> Task:
        return self.task

    def parts(self) -> dict[str, Any]:
        return {
            "task": task_record(self.task, self.source),
            "source": self.source.description,
            "splits": split_records(self.task, self.source),
            "notes": tuple(self.source.warnings),
        }

    def settings(self) -> dict[str, Setting]:
        splits = split_records(self.task, self.source)
        return {
            "task": f"{self.task.name} version {self.task.version}",
            **{f"source.{split}": record.rows_sha256 for split, record in splits.items()},
        }

    def shards(self, rows_per_shard: int) -> tuple[Shard, ...]:
        return all_shards(self.source, rows_per_shard, folder="sentences")

    def read(self, tokens: LoadedTokenizer, split: str, start: int, stop: int) -> Iterator[Sentences]:
        rows = self.source.splits[split].slice(start - self.first, stop - start)
        texts = [part for part in sentences(rows) if part is not None]
        read = stacked([tokens.reader.read(part, None, self.max_seq_length)[0] for part in texts])
        row_N = np.repeat(np.arange(rows.num_rows), len(texts))
        piece_N = np.tile(np.arange(len(texts)), rows.num_rows)
        source_row_N = rows.column("source_row").to_numpy()[row_N]
        yield Sentences(source_row_N, piece_N, read.take(row_N + piece_N * rows.num_rows))

    def count(self, split: str, start: int, stop: int) -> int:
        return stop - start

    def hold(self, shard: Shard) -> "TaskSentences":
        # take() copies only these rows. A slice would be pickled together with the whole table.
        rows = self.source.splits[shard.split].take(pa.array(np.arange(shard.start, shard.stop)))
        source = replace(self.source, splits={shard.split: rows})
        return replace(self, source=source, first=shard.start)

    def sample(self, tokens: LoadedTokenizer, num_rows: int) -> Sample:
        sizes = {split: rows.num_rows for split, rows in self.source.splits.items()}
        split = TRAIN if TRAIN in sizes else max(sizes, key=sizes.__getitem__)
        places = np.unique(np.linspace(0, sizes[split] - 1, min(sizes[split], num_rows)).astype(int)).tolist()
        ids = [part.ids for place in places for part in self.read(tokens, split, place, place + 1)]
        return Sample(stacked(ids), sum(sizes.values()) / len(places))


SentenceRows = CorpusSentences | TaskSentences


def open_rows(rows: DumpTask | DumpCorpus, max_seq_length: int) -> SentenceRows:
    """Returns the sentences that the flags name."""
    if isinstance(rows, DumpCorpus):
        return CorpusSentences(open_text(rows, max_seq_length))
    task = load_task(rows.task, rows.manifest)
    return TaskSentences(task, load_source(task, rows.data, rows.split_names), max_seq_length)


class SentencesDump(TeacherDump):
    """An encoder's vector of each sentence of a corpus or of a task's rows."""

    rows: SentenceRows

    def __init__(self, rows: SentenceRows, wanted: VectorFlags, run: RunFlags, place: SetPlace, command: str) -> None:
        super().__init__(run, place, wanted.set_name(rows.subject.name), command)
        self.rows, self.wanted = rows, wanted

    @cached_property
    def model(self) -> SentenceEncoder:
        """The teacher, on the device."""
        name, revision = self.run.teacher.teacher_for(self.rows.subject)
        pooling = self.wanted.pooling or stated_pooling(name, revision) or "mean"
        encoder = load_encoder(name, revision, self.forward.max_seq_length, pooling)
        encoder.model.to(self.device)
        return encoder

    @cached_property
    def codec(self) -> AnyVectorCodec:
        """The codec of the vectors."""
        codec: AnyVectorCodec = vector_codec(self.wanted.codec, self.model.width)
        return codec

    @cached_property
    def sample(self) -> Sample:
        """Some sentences."""
        return self.rows.sample(self.model.tokens, BASIS_ROWS if self.codec.basis_bytes else SAMPLED_ROWS)

    @cached_property
    def basis(self) -> Basis | None:
        """The basis that the codec needs, fitted to the sample unless the set has it."""
        codec, ids = self.codec, self.sample.ids
        if not codec.basis_bytes:
            return None
        if _has_basis(self.root):
            return read_basis(self.root / BASIS_FILE, codec.num_stored, codec.width)
        chosen = np.unique(np.linspace(0, len(ids) - 1, min(len(ids), BASIS_ROWS)).astype(int))
        with self.inference(), console.progress(len(chosen), "basis") as steps:
            vectors_NH = sentence_vectors(self.model, ids.take(chosen), self.max_tokens, steps.advance)
            return fit_basis(vectors_NH, codec.num_stored)

    def probe(self) -> None:
        sample = self.sample
        if not len(sample.ids):
            source = self.rows.parts()["source"]
            raise DataError(f"{source}: no sentence was found. Try a smaller --min-seq-length")
        require_known_ids(self.model.tokenizer, sample.ids, f"teacher {self.model.name}")
        stored = sum(file.stat().st_size for file in self.root.glob("sentences/*.parquet"))
        require_space(self.root.parent, estimated_bytes(sample, self.codec) - stored)

    @cached_property
    def record(self) -> SetRecord:
        """The planned record. The fingerprint covers everything that determines the content."""
        rows, encoder, forward, basis = self.rows, self.model, self.forward, self.basis
        teacher, tokenizer = teacher_record(encoder), tokenizer_record(encoder.tokenizer)
        settings: dict[str, Setting] = {
            "signal": "vectors",
            "teacher.weights": teacher.sha256,
            "tokenizer": tokenizer.sha256,
            "precision": forward.precision,
            "max_seq_length": forward.max_seq_length,
            **rows.settings(),
            "pooling": encoder.pooling,
            "codec": str(self.codec),
            # Vectors are stored relative to the basis, so files with another basis must not be mixed in.
            **({"basis": basis.sha256} if basis else {}),
        }
        basis_sha256 = basis.sha256 if basis else None
        return staged(
            settings,
            self.command,
            (*LIBRARIES, *rows.libraries),
            name=self.root.name,
            kind="sentences",
            signals=Signals(vectors=Vectors(codec=self.codec, pooling=encoder.pooling, basis_sha256=basis_sha256)),
            teacher=teacher,
            tokenizer=tokenizer,
            max_seq_length=forward.max_seq_length,
            precision=forward.precision,
            shards=rows.shards(self.rows_per_shard),
            **rows.parts(),
        )

    def start(self, record: SetRecord) -> None:
        basis = self.basis
        # The basis is part of the fingerprint, so every process needs it, but only one writes the file.
        if basis is not None and processes().is_main_process and not _has_basis(self.root):
            write_atomically(self.root / BASIS_FILE, lambda path: path.write_bytes(basis.to_bytes()))

    def job(self, record: SetRecord) -> "SentencesJob":
        return SentencesJob(record, self.model, self.forward.precision, self.max_tokens, self.basis)

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        if record is None or record.state != "verified" or not self.wanted.token_vectors:
            return record
        with self.inference():
            return add_encoders_token_vectors(self.root, record, self.model, self.max_tokens)

    def plan(self) -> Plan:
        """Estimates from a sample of sentences and the teacher's config, whose shape is timed on this machine."""
        rows, forward = self.rows, self.forward
        name, revision = self.run.teacher.teacher_for(rows.subject)
        shape = load_config(name, revision)
        tokens = load_tokenizer(name, revision, shape, forward.max_seq_length)
        sample = rows.sample(tokens, SAMPLED_ROWS)
        lengths = [length + tokens.num_special for length in sample.ids.lengths.tolist()]
        seconds = 0.0
        if lengths:
            seconds = classifier_seconds(shape, lengths, self.max_tokens, self.device, forward.precision)
        of_rows = sum(lengths) * sample.multiplier
        alone = shape.vocab_size * TOKENS_ALONE if self.wanted.token_vectors else 0
        disk_bytes = estimated_bytes(sample, vector_codec(self.wanted.codec, shape.hidden_size))
        return Plan(
            rows={"sentences": round(len(lengths) * sample.multiplier)},
            shards=len(rows.shards(self.rows_per_shard)),
            tokens=round(of_rows) + alone,
            disk_bytes=disk_bytes + (token_vectors_bytes(shape) if alone else 0),
            seconds=seconds * sample.multiplier * (1 + alone / of_rows) if of_rows else 0.0,
            memory_bytes=memory_bytes(shape, self.max_tokens),
        )


def _has_basis(root: Path) -> bool:
    """Whether a basis exists, and matches the set's record, if it was started."""
    path, vectors = root / BASIS_FILE, None
    if path.exists() and (root / FILE_NAME).exists():
        vectors = read_set_record(root).signals.vectors
    return path.exists() and (vectors is None or vectors.basis_sha256 == sha256(path))


@dataclass(frozen=True)
class SentencesJob(RowJob[Sentences]):
    """Writes sentences."""

    model: SentenceEncoder
    basis: Basis | None

    def count(self, rows: SentenceRows, shard: Shard) -> int:
        return rows.count(shard.split, shard.start, shard.stop)

    def read(self, rows: SentenceRows, shard: Shard) -> Iterator[Sentences]:
        return rows.read(self.model.tokens, shard.split, shard.start, shard.stop)

    def tables(
        self, rows: SentenceRows, shard: Shard, batches: Iterator[Sentences], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        assert self.record.signals.vectors is not None, "the plan of the record contains them"
        statistics |= no_vector_statistics()
        codec, done = self.record.signals.vectors.codec, shard.start
        for batch in batches:
            for start in range(0, len(batch), SENTENCES_PER_GROUP):
                part = batch.take(np.arange(start, min(start + SENTENCES_PER_GROUP, len(batch))))
                vectors_NH = sentence_vectors(self.model, part.ids, self.max_tokens)
                table = sentences_table(self.record, shard.split, part, codec.encode(vectors_NH, self.basis))
                # Decoding what was just encoded measures the real error, and finds numbers beyond float16 before they
                # are written.
                stored_NH = codec.decode(table, self.basis)
                finite_N = np.isfinite(stored_NH).all(axis=1)
                if not finite_N.all():
                    row = int(np.flatnonzero(~finite_N)[0])
                    text = self.model.tokenizer.decode(part.ids[row].tolist(), skip_special_tokens=False)
                    raise TeacherError(
                        f"{shard.split}, row {part.source_row_R[row]}, {text[:LONGEST_SHOWN]!r}: teacher "
                        f"{self.model.name}: its vector has a number beyond float16. Use --codec int8."
                    )
                add_statistics(statistics, part, vectors_NH, stored_NH)
                yield table
                now = int(part.source_row_R[-1]) + 1
                advance(rows.count(shard.split, done, now))
                done = now
        advance(rows.count(shard.split, done, shard.stop))


BYTES_PER_TOKEN = 1.7  # compressed ids, measured on Wikipedia


def estimated_bytes(sample: Sample, codec: AnyVectorCodec) -> int:
    """Returns the approximate size of a set with this codec."""
    return int(sample.multiplier * (len(sample.ids.flat) * BYTES_PER_TOKEN + len(sample.ids) * codec.num_bytes()))
