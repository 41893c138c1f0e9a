"""Stored examples in memory, and batches of them. Shapes: N rows, B batch, L tokens, C logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pipeline.errors import DataError, IntegrityError
from pipeline.logit_set.reader import KEYS, LogitSet, keys_sha256
from pipeline.logit_set.schema import logits_of
from pipeline.targets import Floats, Ints, Target, gold_arrays, gold_classes
from student.architecture import StudentConfig

COLUMNS = (*KEYS, "ids1", "ids2", "label", "score", "logits")


@dataclass(frozen=True)
class Ragged:
    """Lists of ids, end to end: row n is ``flat[offsets[n]:offsets[n + 1]]``."""

    flat: Ints
    offsets: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """From lists."""
        lengths = [len(row) for row in rows]
        flat = np.fromiter((token for row in rows for token in row), dtype=np.int64, count=sum(lengths))
        return cls(flat, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def repeated(cls, row: Sequence[int], count: int) -> "Ragged":
        """The same row ``count`` times."""
        return cls(np.tile(np.asarray(row, dtype=np.int64), count), np.arange(count + 1) * len(row))

    @property
    def lengths(self) -> Ints:
        """Tokens per row [N]."""
        return np.diff(self.offsets)

    def padded(self, rows: Sequence[int], pad_id: int) -> torch.Tensor:
        """Rows as ids_BL, int64, filled up at the end; at least one token wide."""
        rows_B = np.asarray(rows, dtype=np.int64)
        starts_B = self.offsets[rows_B]
        lengths_B = self.offsets[rows_B + 1] - starts_B
        position_L = np.arange(max(1, lengths_B.max(initial=0)))
        inside_BL = position_L < lengths_B[:, None]
        ids_BL = np.full(inside_BL.shape, pad_id, dtype=np.int64)
        ids_BL[inside_BL] = self.flat[(starts_B[:, None] + position_L)[inside_BL]]
        return torch.from_numpy(ids_BL)


@dataclass(frozen=True)
class Examples:
    """Rows of a logit set, in the order of their keys.

    Attributes:
        ids1: the first sentences' tokens.
        ids2: the second sentences' tokens, or None for single sentences.
        label_N: int64 gold classes, ``NO_LABEL`` where there is none.
        score_N: float32 gold scores, NaN where there is none.
        teacher_NC: float32 logits of the teacher.
        keys_sha256: hash of the rows' keys.
    """

    ids1: Ragged
    ids2: Ragged | None
    label_N: Ints
    score_N: Floats
    teacher_NC: Floats
    keys_sha256: str

    def __len__(self) -> int:
        return len(self.label_N)

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        """One list of ids per row, or two."""
        return (self.ids1,) if self.ids2 is None else (self.ids1, self.ids2)

    @property
    def lengths(self) -> Ints:
        """Tokens per row, the longer sentence of a pair [N]."""
        return self.ids1.lengths if self.ids2 is None else np.maximum(self.ids1.lengths, self.ids2.lengths)

    def batch(self, rows: Sequence[int], pad_id: int) -> tuple[torch.Tensor, ...]:
        """The student's inputs for some rows: ids1_BL, and ids2_BK for pairs."""
        return tuple(part.padded(rows, pad_id) for part in self.sequences)


def load_examples(logit_set: LogitSet, split: str, where: str | None = None) -> Examples:
    """Reads the rows of a split, or those that fulfil a SQL condition.

    Raises:
        DataError: if no row is left.
    """
    rows = logit_set.read(split, COLUMNS, where)
    if not rows.num_rows:
        raise DataError(f"{logit_set.root}: no row of split {split!r} fulfils --where {where!r}")
    is_pair = logit_set.manifest.task.is_pair
    examples = Examples(
        ragged(rows.column("ids1")),
        ragged(rows.column("ids2")) if is_pair else None,
        *gold_arrays(rows),
        logits_of(rows, logit_set.manifest.target.num_logits),
        keys_sha256(rows),
    )
    _check_ranges(logit_set, split, examples)
    return examples


def _check_ranges(logit_set: LogitSet, split: str, examples: Examples) -> None:
    """A set from elsewhere may hold ids and labels that its own manifest has no room for."""
    manifest = logit_set.manifest
    top_id = max(int(part.flat.max(initial=0)) for part in examples.sequences)
    if top_id >= manifest.tokenizer.vocabulary_size:
        raise IntegrityError(f"{logit_set.root}, {split}: id {top_id} is beyond its tokenizer's vocabulary")
    if manifest.target.kind == "classes" and examples.label_N.max(initial=0) >= manifest.target.num_logits:
        raise IntegrityError(f"{logit_set.root}, {split}: label {examples.label_N.max()} is not one of its labels")


def ragged(column: pa.ChunkedArray) -> Ragged:
    """A list column as flat ids and offsets."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return Ragged(flat.astype(np.int64), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def as_read(examples: Examples, config: StudentConfig) -> Examples:
    """The examples in the form a student reads."""
    ids1, *others = sequences(config, *examples.sequences)
    return replace(examples, ids1=ids1, ids2=others[0] if others else None)


def sequences(config: StudentConfig, ids1: Ragged, ids2: Ragged | None = None) -> tuple[Ragged, ...]:
    """What a student reads of one or two sentences: each apart, or both as one sequence if it takes them jointly."""
    if ids2 is None:
        return (ids1,)
    if config.pairing != "joint" or config.special_ids is None:
        return ids1, ids2
    before, between, after = (Ragged.repeated(ids, len(ids1.lengths)) for ids in config.special_ids)
    return (side_by_side(before, ids1, between, ids2, after),)


def side_by_side(*parts: Ragged) -> Ragged:
    """Row n of the result is row n of each part, one after the other."""
    lengths_PN = np.stack([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths_PN.sum(axis=0))])
    starts_PN = offsets[:-1] + np.cumsum(lengths_PN, axis=0) - lengths_PN
    flat = np.empty(offsets[-1], dtype=np.int64)
    for part, starts_N in zip(parts, starts_PN, strict=True):
        flat[np.repeat(starts_N - part.offsets[:-1], part.lengths) + np.arange(len(part.flat))] = part.flat
    return Ragged(flat, offsets)


def gold_tensor(target: Target, examples: Examples) -> torch.Tensor:
    """Training targets [N]: float32 scores for a score, else int64 classes."""
    if target.kind == "score":
        return torch.from_numpy(examples.score_N)
    return torch.from_numpy(gold_classes(target, examples.label_N, examples.score_N))


def sorted_batches(lengths: Ints, batch_size: int) -> Iterator[Ints]:
    """Row numbers in batches of like length, for inference."""
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
