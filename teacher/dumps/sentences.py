"""Stage one on sentences: writes an encoder's vector of each sentence as a set of sentences.

Shapes: N sentences, H hidden size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats
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
from pipeline.sets.record import FILE_NAME, SetRecord, read_set_record, staged
from pipeline.sets.record_parts import Setting, Shard
from pipeline.sets.signals import Signals, Vectors
from pipeline.text.tokenizer import require_known_ids
from teacher.corpus.sentence_rows import Sample, SentenceRows
from teacher.dump.additions import add_encoders_token_vectors
from teacher.dump.driver import Executor
from teacher.dump.estimate import TOKENS_ALONE, Plan, classifier_seconds, memory_bytes, token_vectors_bytes
from teacher.dump.records import LIBRARIES, teacher_record
from teacher.dump.rows import tokenizer_record
from teacher.dump.shard_jobs import Advance, RowJob
from teacher.dump.teacher_dump import TeacherDump
from teacher.models.batches import LONGEST_SHOWN
from teacher.models.encoder import SentenceEncoder, load_encoder, sentence_vectors, stated_pooling
from teacher.models.loaded import load_config, load_tokenizer
from teacher.settings import RunFlags, SetPlace, VectorFlags

SAMPLED_ROWS = 512  # source rows, for the size of the whole
# At most so many sentences are used to fit a basis.
BASIS_ROWS = 4096


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
        with self.inference():
            return _basis(self.root, self.codec, self.model, self.sample, self.max_tokens)

    def probe(self) -> None:
        """See `Dump`."""
        sample = self.sample
        if not len(sample.ids):
            source = self.rows.parts()["source"]
            raise DataError(f"{source}: no sentence was found. Try a smaller --min-seq-length")
        require_known_ids(self.model.tokenizer, sample.ids, f"teacher {self.model.name}")
        stored = sum(file.stat().st_size for file in self.root.glob("sentences/*.parquet"))
        require_space(self.root.parent, estimated_bytes(sample, self.codec) - stored)

    @cached_property
    def record(self) -> SetRecord:
        """See `Dump`. The fingerprint covers everything that determines the content."""
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
        """See `Dump`."""
        basis = self.basis
        # The basis is part of the fingerprint, so every process needs it, but only one writes the file.
        if basis is not None and processes().is_main_process and not _has_basis(self.root):
            write_atomically(self.root / BASIS_FILE, lambda path: path.write_bytes(basis.to_bytes()))

    def job(self, record: SetRecord) -> "SentencesJob":
        """See `Dump`."""
        return SentencesJob(record, self.model, self.forward.precision, self.max_tokens, self.basis)

    def finish(self, record: SetRecord | None, executor: Executor) -> SetRecord | None:
        """See `Dump`."""
        if record is None or record.state != "verified" or not self.wanted.token_vectors.token_vectors:
            return record
        with self.inference():
            return add_encoders_token_vectors(self.root, record, self.model, self.max_tokens)

    def plan(self) -> Plan:
        """See `Dump`.

        Estimates from a sample of sentences and the teacher's config, whose shape is timed on this machine.
        """
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
        alone = shape.vocab_size * TOKENS_ALONE if self.wanted.token_vectors.token_vectors else 0
        disk_bytes = estimated_bytes(sample, vector_codec(self.wanted.codec, shape.hidden_size))
        return Plan(
            rows={"sentences": round(len(lengths) * sample.multiplier)},
            shards=len(rows.shards(self.rows_per_shard)),
            tokens=round(of_rows) + alone,
            disk_bytes=disk_bytes + (token_vectors_bytes(shape) if alone else 0),
            seconds=seconds * sample.multiplier * (1 + alone / of_rows) if of_rows else 0.0,
            memory_bytes=memory_bytes(shape, self.max_tokens),
        )


def _basis(
    root: Path, codec: AnyVectorCodec, encoder: SentenceEncoder, sample: Sample, max_tokens: int
) -> Basis | None:
    """Returns the basis for a codec: that of the set, or one fitted to a sample."""
    if not codec.basis_bytes:
        return None
    if _has_basis(root):
        return read_basis(root / BASIS_FILE, codec.num_stored, codec.width)
    chosen = np.unique(np.linspace(0, len(sample.ids) - 1, min(len(sample.ids), BASIS_ROWS)).astype(int))
    with console.progress(len(chosen), "basis") as steps:
        return fit_basis(
            sentence_vectors(encoder, sample.ids.take(chosen), max_tokens, steps.advance), codec.num_stored
        )


def _has_basis(root: Path) -> bool:
    """Whether a basis exists, and matches the set's record, if it was started."""
    path, vectors = root / BASIS_FILE, None
    if path.exists() and (root / FILE_NAME).exists():
        vectors = read_set_record(root).signals.vectors
    return path.exists() and (vectors is None or vectors.basis_sha256 == sha256(path))


@dataclass(frozen=True)
class SentencesJob(RowJob[Sentences]):
    """Writes sentences.

    Attributes:
        basis: the basis for the codec, if it needs one.
    """

    model: SentenceEncoder
    basis: Basis | None

    def count(self, rows: SentenceRows, shard: Shard) -> int:
        """See `RowJob`."""
        return rows.count(shard.split, shard.start, shard.stop)

    def read(self, rows: SentenceRows, shard: Shard) -> Iterator[Sentences]:
        """See `RowJob`."""
        return rows.read(self.model.tokens, shard.split, shard.start, shard.stop)

    def tables(
        self, rows: SentenceRows, shard: Shard, batches: Iterator[Sentences], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        """See `RowJob`."""
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
                _check_finite(self.model, shard.split, part, stored_NH)
                add_statistics(statistics, part, vectors_NH, stored_NH)
                yield table
                now = int(part.source_row_R[-1]) + 1
                advance(rows.count(shard.split, done, now))
                done = now
        advance(rows.count(shard.split, done, shard.stop))


def _check_finite(encoder: SentenceEncoder, split: str, rows: Sentences, stored_NH: Floats) -> None:
    """Raises TeacherError if a finite number of a vector is too large for float16."""
    finite_N = np.isfinite(stored_NH).all(axis=1)
    if not finite_N.all():
        row = int(np.flatnonzero(~finite_N)[0])
        text = encoder.tokenizer.decode(rows.ids[row].tolist(), skip_special_tokens=False)
        raise TeacherError(
            f"{split}, row {rows.source_row_R[row]}, {text[:LONGEST_SHOWN]!r}: teacher {encoder.name}: its "
            "vector has a number beyond float16. Use --codec int8."
        )


BYTES_PER_TOKEN = 1.7  # compressed ids, measured on Wikipedia


def estimated_bytes(sample: Sample, codec: AnyVectorCodec) -> int:
    """Returns the approximate size of a set with this codec."""
    return int(sample.multiplier * (len(sample.ids.flat) * BYTES_PER_TOKEN + len(sample.ids) * codec.num_bytes()))
