"""Logits that are known already, by the hash of their text, so that no text is asked about twice.

Shapes: N rows, K known texts, C logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.arrays import Floats, Ints
from pipeline.sets.kinds.examples import text_hashes
from pipeline.sets.record import SetRecord
from pipeline.sets.row_kind import TEXT_HASH_BYTES
from pipeline.sources import Source, sentences
from pipeline.text.tokenizer import Tokenized
from teacher.dump.rows import source_rows
from teacher.models.batches import naming_rows
from teacher.models.classifier import Teacher
from teacher.models.logits import teacher_logits

HASH = f"S{TEXT_HASH_BYTES}"
TextHashes = npt.NDArray[np.bytes_]


@dataclass(frozen=True)
class Known:
    """Logits of texts, found by their hashes.

    Attributes:
        hash_K: text hashes, ascending.
        logits_KC: float32, what the teacher says of each.
    """

    hash_K: TextHashes
    logits_KC: Floats

    @classmethod
    def of(cls, hashes: Sequence[bytes], logits_NC: Floats) -> "Known":
        """Puts answers in order; of a text with several, the first counts."""
        hash_K, first_K = np.unique(np.array(hashes, dtype=HASH), return_index=True)
        return cls(hash_K, logits_NC[first_K])

    @classmethod
    def empty(cls, num_logits: int) -> "Known":
        """Answers to no text, of so many logits each."""
        return cls.of([], np.empty((0, num_logits), dtype=np.float32))

    def find(self, hash_N: TextHashes) -> Ints:
        """For each hash the number of its row in ``logits_KC``, or -1 [N]."""
        if not len(self.hash_K):
            return np.full(len(hash_N), -1)
        place_N = np.searchsorted(self.hash_K, hash_N).clip(max=len(self.hash_K) - 1)
        return np.where(self.hash_K[place_N] == hash_N, place_N, -1)


def hashes_by_shard(source: Source, record: SetRecord) -> list[TextHashes]:
    """The text hashes of the source rows of each shard; 16 bytes a row."""
    sha256 = record.tokenizer.sha256
    return [np.array(text_hashes(source_rows(source, shard), sha256), dtype=HASH) for shard in record.shards]


def logits_of_repeated(
    teacher: Teacher,
    source: Source,
    record: SetRecord,
    hashes: Sequence[TextHashes],
    known: Known,
    max_tokens: int,
) -> Known:
    """What is known, and the teacher's logits of the texts that are in several shards.

    Every process asks about all of them, so that a shard does not depend on who writes it, and when.
    """
    texts, counts = np.unique(np.concatenate([np.unique(hash_R) for hash_R in hashes]), return_counts=True)
    wanted = texts[counts > 1]
    wanted = wanted[known.find(wanted) < 0]
    if not len(wanted):
        return known
    parts = []
    left = wanted
    for shard, hash_R in zip(record.shards, hashes, strict=True):
        in_shard, places, _ = np.intersect1d(hash_R, left, return_indices=True)
        parts.append(source_rows(source, shard).take(np.sort(places)))
        left = np.setdiff1d(left, in_shard, assume_unique=True)
    rows = pa.concat_tables(parts)
    inputs = teacher.reader.tokenize(*sentences(rows), record.max_seq_length)
    with naming_rows(inputs, rows, "/".join(record.splits)):
        logits_NC = np.concatenate([known.logits_KC, teacher_logits(teacher, inputs, max_tokens)])
    return Known.of([*known.hash_K, *text_hashes(rows, record.tokenizer.sha256)], logits_NC)


def logits_once(
    teacher: Teacher,
    inputs: Sequence[Tokenized],
    hashes: Sequence[bytes],
    known: Known,
    max_tokens: int,
    advance: Callable[[int], None],
) -> Floats:
    """What `teacher_logits` gives, but each text is asked about once, and not at all if the answer is known.

    Args:
        teacher: the teacher, on its device.
        inputs: tokenised inputs, N of them.
        hashes: their text hashes.
        known: logits that need not be asked for.
        max_tokens: most padded tokens per batch.
        advance: called with a number of rows that are done.

    Returns:
        logits_NC: float32, in the order of ``inputs``.
    """
    hash_N = np.array(hashes, dtype=HASH)
    place_N = known.find(hash_N)
    logits_NC = np.empty((len(inputs), teacher.target.num_logits), dtype=np.float32)
    logits_NC[place_N >= 0] = known.logits_KC[place_N[place_N >= 0]]
    unknown = np.flatnonzero(place_N < 0)
    _, first, text = np.unique(hash_N[unknown], return_index=True, return_inverse=True)
    in_order = np.argsort(first)  # batches are as if there were no other rows
    asked = unknown[first[in_order]]
    advance(len(inputs) - len(asked))
    if len(asked):
        answers = teacher_logits(teacher, [inputs[row] for row in asked], max_tokens, advance)
        logits_NC[unknown] = answers[np.argsort(in_order)[text]]
    return logits_NC
