"""Known logits by the hash of their text, so that the teacher reads no text twice.

Texts that occur in several shards are read first, once. Their logits are stored for the set's other jobs in a file
whose name contains the set's fingerprint. Shapes: N inputs, K known texts, T rows of logits of all of them (one for
each text, or one for each token of it), C logits.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.arrays import Floats, Ints, Ragged
from pipeline.files import make_folder, remove_file
from pipeline.resumable import FilePart, Workspace
from pipeline.sets.files import Statistics
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.registry import TEXT_HASH_BYTES
from pipeline.sources import Source
from pipeline.text.tokenizer import Tokenized
from teacher.dump.rows import source_rows
from teacher.dump.shard_jobs import Advance, RowJob
from teacher.models.batches import naming_rows
from teacher.models.classifier import no_progress

HASH = f"S{TEXT_HASH_BYTES}"
FOLDER = "repeated"
TextHashes = npt.NDArray[np.bytes_]
Predict = Callable[[Sequence[Tokenized], Advance], Floats]


@dataclass(frozen=True)
class Known:
    """Logits of texts, found by their hashes.

    Attributes:
        hash_K: text hashes, ascending.
        logits_TC: float32, of one text after the other.
        rows: the numbers of each text's rows in ``logits_TC``.
    """

    hash_K: TextHashes
    logits_TC: Floats
    rows: Ragged

    @classmethod
    def of(cls, hashes: Sequence[bytes], logits_TC: Floats, lengths: Sequence[int] | Ints | None = None) -> "Known":
        """Sorts answers. For a text with several answers, the first one counts.

        ``lengths`` are the rows of logits per text, one each by default.
        """
        # Sorted hashes allow binary search, which needs far less memory than a dictionary of millions of keys.
        hash_K, first_K = np.unique(np.array(hashes, dtype=HASH), return_index=True)
        rows = _numbered(np.ones(len(hashes), dtype=np.int64) if lengths is None else lengths).take(first_K)
        return cls(hash_K, logits_TC[rows.flat], _numbered(rows.lengths))

    @classmethod
    def empty(cls, num_logits: int) -> "Known":
        """Returns answers without any text, with so many logits each."""
        return cls.of([], np.empty((0, num_logits), dtype=np.float32))

    def find(self, hash_N: TextHashes) -> Ints:
        """Returns for each hash the number of its text, or -1 [N]."""
        if not len(self.hash_K):
            return np.full(len(hash_N), -1)
        place_N = np.searchsorted(self.hash_K, hash_N).clip(max=len(self.hash_K) - 1)
        return np.where(self.hash_K[place_N] == hash_N, place_N, -1)

    def take(self, place_N: Ints) -> Floats:
        """Returns the logits of the texts with these numbers, one after the other."""
        return self.logits_TC[self.rows.take(place_N).flat]


def _numbered(lengths: Sequence[int] | Ints) -> Ragged:
    """Returns lists of these lengths with consecutive numbers."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return Ragged(np.arange(offsets[-1]), offsets)


def logits_once(
    predict: Predict,
    inputs: Sequence[Tokenized],
    lengths: Ints,
    hashes: Sequence[bytes],
    known: Known,
    advance: Advance,
) -> Floats:
    """Returns the results of ``predict``, but runs each text at most once, and known texts never."""
    hash_N = np.array(hashes, dtype=HASH)
    place_N, rows = known.find(hash_N), _numbered(lengths)
    logits_TC = np.empty((len(rows.flat), known.logits_TC.shape[1]), dtype=np.float32)
    found, unknown = np.flatnonzero(place_N >= 0), np.flatnonzero(place_N < 0)
    logits_TC[rows.take(found).flat] = known.take(place_N[found])
    _, first, text = np.unique(hash_N[unknown], return_index=True, return_inverse=True)
    # np.unique sorts by hash. The original order restores batches as without duplicates, and so the same rounding.
    in_order = np.argsort(first)
    read = unknown[first[in_order]]
    advance(len(inputs) - len(read))
    if len(read):
        answers = predict([inputs[row] for row in read], advance)
        place = _numbered(rows.lengths[read]).take(np.argsort(in_order)[text])
        logits_TC[rows.take(unknown).flat] = answers[place.flat]
    return logits_TC


@dataclass(frozen=True)
class Inputs:
    """Rows on their way through the teacher, with the hashes of their texts."""

    rows: pa.Table
    hashes: list[bytes]
    tokenized: Sequence[Tokenized]


I = TypeVar("I", bound=Inputs)  # noqa: E741


@dataclass(frozen=True)
class LogitsJob(RowJob[I], Generic[I]):
    """Writes rows with a classifier's logits, per text or per token. The teacher does not compute known ones again."""

    known: Known

    @abstractmethod
    def prepare(self, rows: pa.Table) -> I:
        """Tokenises rows."""

    @abstractmethod
    def predict(self, inputs: Sequence[Tokenized], advance: Advance) -> Floats:
        """Returns the teacher's logits_TC of inputs."""

    @abstractmethod
    def lengths(self, inputs: Sequence[Tokenized]) -> Ints:
        """Returns how many rows of logits each input has [N]."""

    @abstractmethod
    def table(self, shard: Shard, inputs: I, logits_TC: Floats) -> pa.Table:
        """Returns the table of a shard."""

    @abstractmethod
    def hashes(self, rows: pa.Table) -> list[bytes]:
        """Returns the hashes of the texts of rows."""

    def count(self, rows: Any, shard: Shard) -> int:
        return int(rows.count(shard))

    def read(self, rows: Any, shard: Shard) -> Iterator[I]:
        yield self.prepare(rows.read(shard))

    def tables(
        self, rows: Any, shard: Shard, batches: Iterator[I], advance: Advance, statistics: Statistics
    ) -> Iterator[pa.Table]:
        for inputs in batches:
            with naming_rows(inputs.tokenized, inputs.rows, shard.split):
                lengths = self.lengths(inputs.tokenized)
                logits_TC = logits_once(self.predict, inputs.tokenized, lengths, inputs.hashes, self.known, advance)
            yield self.table(shard, inputs, logits_TC)

    def with_repeated(self, source: Source, hashes: Sequence[TextHashes]) -> Known:
        """Returns known logits, together with the teacher's logits of texts that are in several shards.

        Every process needs all of them, so that a shard does not depend on its process and on time.
        """
        texts, counts = np.unique(np.concatenate([np.unique(hash_R) for hash_R in hashes]), return_counts=True)
        # Padding and batches change the last bits of logits. Read once, a text has the same logits in all of its
        # shards.
        wanted = texts[counts > 1]
        wanted = wanted[self.known.find(wanted) < 0]
        if not len(wanted):
            return self.known
        parts = []
        left = wanted
        for shard, hash_R in zip(self.record.shards, hashes, strict=True):
            in_shard, places, _ = np.intersect1d(hash_R, left, return_indices=True)
            parts.append(source_rows(source, shard).take(np.sort(places)))
            # Each repeated text is read in the first shard that contains it.
            left = np.setdiff1d(left, in_shard, assume_unique=True)
        inputs = self.prepare(pa.concat_tables(parts))
        with naming_rows(inputs.tokenized, inputs.rows, "/".join(self.record.splits)):
            logits_TC = np.concatenate([self.known.logits_TC, self.predict(inputs.tokenized, no_progress)])
        lengths = [*self.known.rows.lengths, *self.lengths(inputs.tokenized)]
        return Known.of([*self.known.hash_K, *inputs.hashes], logits_TC, lengths)

    def hashes_by_shard(self, source: Source) -> list[TextHashes]:
        """Returns the text hashes of the source rows of each shard, 16 bytes per row."""
        return [np.array(self.hashes(source_rows(source, shard)), dtype=HASH) for shard in self.record.shards]


def read_shared_answers(store: Path, record: SetRecord) -> Known | None:
    """Reads the answers that another job of the same set has written. None if they are missing or damaged."""
    work, part = _workspace(store, record)
    if not work.has(part):
        return None
    try:
        path = work.root / part.path
        table = pq.read_table(path, schema=_schema(record), partitioning=None, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    lists = table.column("logits").combine_chunks()
    flat = lists.flatten().flatten().to_numpy(zero_copy_only=False)
    # A damaged file costs only time: the teacher then reads the texts again.
    if not np.isfinite(flat).all():
        return None
    logits_TC = flat.reshape(-1, record.target.num_logits)
    return Known.of(table.column("text_hash").to_pylist(), logits_TC, lists.value_lengths().to_numpy())


def write_shared_answers(store: Path, record: SetRecord, known: Known) -> None:
    """Writes the teacher's answers for the jobs that come later."""
    work, part = _workspace(store, record)
    schema = _schema(record)
    each = pa.FixedSizeListArray.from_arrays(pa.array(known.logits_TC.ravel()), known.logits_TC.shape[1])
    logits = pa.ListArray.from_arrays(pa.array(known.rows.offsets, pa.int32()), each)
    # numpy strips trailing zero bytes from the type S, and one in 256 hashes ends with such a byte. The type V keeps
    # them.
    hashes = [bytes(text) for text in known.hash_K.astype(f"V{TEXT_HASH_BYTES}")]
    make_folder(work.root)
    work.write_table(
        part, pa.table({"text_hash": pa.array(hashes, schema.field(0).type), "logits": logits}, schema=schema)
    )


def remove_shared_answers(store: Path, record: SetRecord | None) -> None:
    """Removes the shared answers of a verified set, which no job needs any more."""
    if record is not None and record.state == "verified":
        work, part = _workspace(store, record)
        remove_file(work.root / part.path)


def _workspace(store: Path, record: SetRecord) -> tuple[Workspace, FilePart]:
    # Several jobs write here at once, so there is no record, and temporary files of other jobs are not removed.
    work = Workspace(store / FOLDER, record.settings)
    return work, FilePart(f"{work.fingerprint[:16]}.parquet")


def _schema(record: SetRecord) -> pa.Schema:
    logits = pa.list_(pa.list_(pa.float32(), record.target.num_logits))
    return pa.schema([pa.field("text_hash", pa.binary(TEXT_HASH_BYTES)), pa.field("logits", logits)])
