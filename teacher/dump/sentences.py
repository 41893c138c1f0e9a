"""Stage one on sentences: an encoder's vector of each, written as a set of sentences.

Shapes: N sentences, H hidden size.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats
from pipeline.devices import processes
from pipeline.errors import DataError, TeacherError
from pipeline.files import make_folder, require_space, sha256, write_atomically
from pipeline.sets.kinds.sentences import (
    SENTENCES_PER_GROUP,
    Sentences,
    SentenceSet,
    add_statistics,
    no_vector_statistics,
    sentences_table,
)
from pipeline.sets.record import FILE_NAME, Scores, SetRecord, read_set_record
from pipeline.sets.record_parts import Shard
from pipeline.sets.shard_file import Statistics
from pipeline.sets.vector_basis import BASIS_FILE, Basis, fit_basis, read_basis
from pipeline.sets.vector_codecs import AnyVectorCodec, vector_codec_for
from pipeline.sets.writer import write_shard
from pipeline.stopping import stop_between
from pipeline.text.tokenizer import require_known_ids
from teacher.config import DumpCorpus, DumpTask
from teacher.dump.cluster import Errand, ask_here_or_there
from teacher.dump.jobs import write_set
from teacher.dump.prefetch import prefetched
from teacher.dump.sentence_rows import Sample, SentenceRows, open_rows
from teacher.dump.sentences_record import estimated_bytes, staged_record
from teacher.dump.token_vectors import add_encoders_token_vectors
from teacher.models.batches import LONGEST_SHOWN, tokens_per_batch
from teacher.models.encoder import SentenceEncoder, load_encoder, sentence_vectors, stated_pooling
from teacher.models.loaded import inference_mode

SAMPLED_ROWS = 512  # source rows, for the size of the whole
BASIS_ROWS = 4096  # at most so many sentences, for the basis


def dump_vectors(config: DumpTask | DumpCorpus, command: str) -> SetRecord | None:
    """Writes the set of sentences that ``config`` describes, or goes on with it.

    Args:
        config: the command's settings, with ``signal`` vectors.
        command: the command line, for the record.

    Returns:
        The record; still ``staged`` if other jobs have shards to write. None on other ranks than the first.

    Raises:
        ConfigError: for flags that do not fit.
        DataError: if there is no sentence.
        TeacherError: if the teacher is no encoder, or says NaN or what the codec cannot hold.
    """
    rows = open_rows(config)
    root = config.store / config.set_name(rows.subject.name)
    make_folder(config.store)
    state = processes()
    name, revision = config.teacher_for(rows.subject)
    pooling = config.pooling or stated_pooling(name, revision) or "mean"
    encoder = load_encoder(name, revision, config.max_seq_length, pooling)
    encoder.model.to(state.device)
    max_tokens = tokens_per_batch(state.device, config.max_tokens_per_batch)
    codec = vector_codec_for(config, encoder.width)
    sample = rows.sample(encoder.tokens, BASIS_ROWS if codec.basis_bytes else SAMPLED_ROWS)
    if not len(sample.ids):
        raise DataError(f"{rows.parts()['source']}: no sentence was found; is --min-seq-length too large?")
    require_known_ids(encoder.tokenizer, sample.ids, f"teacher {encoder.name}")
    stored = sum(file.stat().st_size for file in root.glob("sentences/*.parquet"))
    require_space(config.store, estimated_bytes(sample, codec) - stored)
    inference = partial(inference_mode, state.device, config.precision)
    with inference():
        basis = _basis(root, codec, encoder, sample, max_tokens)
    planned = staged_record(config, rows, encoder, codec, basis, command)

    def started(_: SetRecord) -> None:
        if basis is not None and state.is_main_process and not _has_basis(root):
            write_atomically(root / BASIS_FILE, lambda path: path.write_bytes(basis.to_bytes()))

    def write(record: SetRecord, shards: list[Shard]) -> None:
        ask = partial(_write_shards, encoder, basis, max_tokens)
        errand = Errand(record, encoder, config.precision, ask, (record.kind,))
        ask_here_or_there(config, root, errand, rows, shards)

    def scores(record: SetRecord) -> Scores:
        return SentenceSet(root, record).scores()

    record = write_set(root, planned, encoder.reader.tokenizer_json(), write, scores, config.job(), state, started)
    if record is None or record.state != "verified" or not config.token_vectors:
        return record
    with inference():
        return add_encoders_token_vectors(root, record, encoder, max_tokens)


def _basis(
    root: Path, codec: AnyVectorCodec, encoder: SentenceEncoder, sample: Sample, max_tokens: int
) -> Basis | None:
    """The basis that a codec needs: the one that the set has, or one fitted to a sample if that is lost."""
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
    """Whether a basis is there, and the one that the set's record tells of, if it was begun."""
    path, vectors = root / BASIS_FILE, None
    if path.exists() and (root / FILE_NAME).exists():
        vectors = read_set_record(root).signals.vectors
    return path.exists() and (vectors is None or vectors.basis_sha256 == sha256(path))


def _write_shards(
    encoder: SentenceEncoder,
    basis: Basis | None,
    max_tokens: int,
    root: Path,
    record: SetRecord,
    rows: SentenceRows,
    shards: list[Shard],
) -> None:
    total = sum(rows.count(shard.split, shard.start, shard.stop) for shard in shards)
    with console.progress(total, "teacher") as steps:
        for shard in stop_between(shards):
            steps.describe(f"teacher: {shard.split} {shard.index + 1}/{shard.count}")
            statistics = no_vector_statistics()
            groups = _groups(record, shard, rows, encoder, basis, max_tokens, statistics, steps)
            write_shard(root, record, shard, groups, statistics)


def _groups(
    record: SetRecord,
    shard: Shard,
    rows: SentenceRows,
    encoder: SentenceEncoder,
    basis: Basis | None,
    max_tokens: int,
    statistics: Statistics,
    steps: console.Steps,
) -> Iterator[pa.Table]:
    """The row groups of a shard, as the teacher goes through its sentences; the next are read meanwhile."""
    assert record.signals.vectors is not None, "the record was planned with them"
    codec, seen = record.signals.vectors.codec, shard.start
    for batch in prefetched(rows.read(encoder.tokens, shard.split, shard.start, shard.stop)):
        for start in range(0, len(batch), SENTENCES_PER_GROUP):
            part = batch.take(np.arange(start, min(start + SENTENCES_PER_GROUP, len(batch))))
            said_NH = sentence_vectors(encoder, part.ids, max_tokens)
            table = sentences_table(record, shard.split, part, codec.encode(said_NH, basis))
            kept_NH = codec.decode(table, basis)
            _check_kept(encoder, shard.split, part, kept_NH)
            add_statistics(statistics, part, said_NH, kept_NH)
            yield table
            now = int(part.source_row_R[-1]) + 1
            steps.advance(rows.count(shard.split, seen, now))
            seen = now
    steps.advance(rows.count(shard.split, seen, shard.stop))


def _check_kept(encoder: SentenceEncoder, split: str, rows: Sentences, kept_NH: Floats) -> None:
    """Raises TeacherError if a number of a vector, which is finite, was too large for float16."""
    finite_N = np.isfinite(kept_NH).all(axis=1)
    if not finite_N.all():
        row = int(np.flatnonzero(~finite_N)[0])
        text = encoder.tokenizer.decode(rows.ids[row].tolist(), skip_special_tokens=False)
        raise TeacherError(
            f"{split}, row {rows.source_row_R[row]}, {text[:LONGEST_SHOWN]!r}: teacher {encoder.name}: its vector has "
            "a number beyond float16; take --vector-codec int8"
        )
