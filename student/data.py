"""Stored examples in memory, their batches, held-out rows, and weights of classes.

Shapes: N rows, B batch, L tokens, C logits or classes.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from pipeline import console
from pipeline.arrays import Bools, Floats, Ints, Ragged, ragged, stacked
from pipeline.errors import DataError, IntegrityError
from pipeline.query.selection import read_chosen
from pipeline.sets.file_columns import groups_by_file_column
from pipeline.sets.kinds.examples import KEYS, ORIGINALS, TEXTS, ExampleSet, keys_sha256
from pipeline.sets.open import load_set_tokenizer
from pipeline.sets.signals.rows import logits_of
from pipeline.sources import sentences
from pipeline.tasks.target import NO_LABEL, Target, gold_arrays, has_gold
from pipeline.tasks.task import TRAIN
from pipeline.text.near_copies import counted_groups, groups_of
from pipeline.text.text_to_ids import TextReader
from pipeline.training.batches import EpochBatches, held_out_rows
from student.model.architecture import StudentConfig, sequences
from student.model.heads import HEADS
from student.settings import ClassWeights, HeadKind

# Only these columns are read. Texts and hashes would take most of the time and memory.
COLUMNS = (*KEYS, "ids1", "ids2", "label", "score", "logits")


class Rows(Protocol):
    """Rows of any kind in memory."""

    def __len__(self) -> int:
        """The number of rows, N."""
        ...

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        """Returns the token ids that a student reads: one list per row, or two for pairs."""
        ...

    @property
    def weight_N(self) -> Floats:
        """Returns the weights of the rows in the loss, float32."""
        ...

    def without_teacher(self) -> Self:
        """Returns the rows without logits."""
        ...


@dataclass(frozen=True)
class Examples:
    """Rows of a logit set, in the order of their keys.

    Attributes:
        ids1: the first sentences' tokens.
        ids2: the second sentences' tokens, or None for single sentences.
        label_N: int64 gold classes, or label_NC, with ``NO_LABEL`` for missing gold.
        score_N: float32 gold scores, with NaN for missing gold.
        teacher_NC: float32 logits of the teacher, or of the mixture of teachers. Rows of a file have no logits: [0, C].
        weight_N: float32 weights of the rows in the loss, with the mean 1.
        key_N2: int64, source row and variant of each row.
        keys_sha256: hash of the keys of all rows, including held-out ones.
        group_N: int64, the group of each row with gold that is no variant. None: every row is a group of its own.
    """

    ids1: Ragged
    ids2: Ragged | None
    label_N: Ints
    score_N: Floats
    teacher_NC: Floats
    weight_N: Floats
    key_N2: Ints
    keys_sha256: str
    group_N: Ints | None = None

    def __len__(self) -> int:
        return len(self.label_N)

    @property
    def logits_sha256(self) -> str:
        """Returns the hash of the logits and weights, in the order of the rows."""
        # Weights are hashed with the logits, since both decide the loss of a row.
        return hashlib.sha256(self.teacher_NC.tobytes() + self.weight_N.tobytes()).hexdigest()

    @property
    def sequences(self) -> tuple[Ragged, ...]:
        return (self.ids1,) if self.ids2 is None else (self.ids1, self.ids2)

    @property
    def lengths(self) -> Ints:
        """Returns the tokens per row, for a pair of its longer sentence [N]."""
        return self.ids1.lengths if self.ids2 is None else np.maximum(self.ids1.lengths, self.ids2.lengths)

    def without_teacher(self) -> Self:
        """Returns the rows without logits."""
        return replace(self, teacher_NC=self.teacher_NC[:0])

    def taken(self, places: Ints) -> "Examples":
        """Returns the rows with these numbers."""
        return replace(
            self,
            ids1=self.ids1.take(places),
            ids2=None if self.ids2 is None else self.ids2.take(places),
            label_N=self.label_N[places],
            score_N=self.score_N[places],
            teacher_NC=self.teacher_NC[places],
            weight_N=self.weight_N[places],
            key_N2=self.key_N2[places],
            group_N=None if self.group_N is None else self.group_N[places],
        )

    def batch(self, rows: Sequence[int] | Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the student's inputs for some rows: ids_T and starts_S of all sequences."""
        taken = stacked([part.take(rows) for part in self.sequences])
        return torch.from_numpy(taken.flat), torch.from_numpy(taken.offsets)


def load_examples(logit_set: ExampleSet, split: str, where: str | None = None) -> Examples:
    """Reads the rows of a split, or only those that match a SQL condition.

    Raises:
        DataError: if no row is left.
    """
    rows = logit_set.read(split, _columns(logit_set), where)
    if not rows.num_rows:
        reason = f"matches --where {where!r}" if where not in (None, ORIGINALS) else "has logits in every given set"
        raise DataError(f"{logit_set.root}: no row of split {split!r} {reason}")
    return _examples(logit_set, split, rows, np.ones(rows.num_rows, dtype=np.float32))


def load_dev(logit_set: ExampleSet, split: str) -> Examples:
    """Reads the rows of a dev split without their variants, which exist for word importance only."""
    return load_examples(logit_set, split, ORIGINALS)


def load_chosen(logit_set: ExampleSet, query: str) -> Examples:
    """Reads the training rows that a query selects. Their weights are scaled to the mean 1.

    Raises:
        QueryError: if the query fails or returns wrong rows.
    """
    # The logits are added by the set itself, which may mix several teachers.
    rows = read_chosen(logit_set, query, [name for name in _columns(logit_set) if name != "logits"])
    weight_N = rows.column("weight").to_numpy()
    # Dividing by the largest weight first keeps the mean of huge weights from overflowing.
    weight_N = weight_N / weight_N.max()
    return _examples(logit_set, "train", rows, (weight_N / weight_N.mean()).astype(np.float32))


def _columns(logit_set: ExampleSet) -> tuple[str, ...]:
    return COLUMNS if logit_set.vocabulary is None else (*COLUMNS, *TEXTS)


def own_sequences(logit_set: ExampleSet, rows: pa.Table) -> tuple[Ragged, ...]:
    """Returns the ids of rows' texts in the vocabulary of a student.

    Text that was truncated for the teacher is left out, because the logits do not depend on it.
    """
    vocabulary, length = logit_set.vocabulary, logit_set.record.max_seq_length
    assert vocabulary is not None, "there are stored ids otherwise"
    texts = [part for part in sentences(rows) if part is not None]
    stored = [pc.list_value_length(rows.column(name)).to_numpy() for name in ("ids1", "ids2")[: len(texts)]]
    teacher = TextReader.of(load_set_tokenizer(logit_set.root, logit_set.record.tokenizer))
    room = length - teacher.tokenizer.num_special_tokens_to_add(logit_set.record.is_pair)
    # Only these rows can have been truncated, and they are few.
    full = np.flatnonzero(np.sum(stored, axis=0) >= room)
    for part, count_N in zip(texts, stored, strict=True):
        for row, encoding in zip(full, teacher.encode([part[row] for row in full]), strict=True):
            if len(encoding) > count_N[row]:
                part[row] = part[row][: encoding.offsets[count_N[row]][0]]
    return vocabulary.reader.read(texts[0], texts[1] if len(texts) == 2 else None, length)


def _examples(logit_set: ExampleSet, split: str, rows: pa.Table, weight_N: Floats) -> Examples:
    record = logit_set.record
    stored = [ragged(rows.column(name)) for name in ("ids1", "ids2")[: 1 + record.is_pair]]
    ids1, *others = stored if logit_set.vocabulary is None else own_sequences(logit_set, rows)
    examples = Examples(
        ids1,
        others[0] if others else None,
        *gold_arrays(record.target, rows),
        logits_of(rows, record.target.num_logits),
        weight_N,
        np.stack([rows.column(name).to_numpy().astype(np.int64) for name in ("source_row", "variant")], axis=1),
        keys_sha256(rows),
    )
    # Ids, labels and logits are checked, because a downloaded set may falsely claim to be verified.
    where = f"{logit_set.root}, {split}"
    for part in examples.sequences:
        low, high = int(part.flat.min(initial=0)), int(part.flat.max(initial=0))
        # An id beyond the tables would raise an index error in a kernel, without the name of the set.
        if low < 0 or high >= logit_set.tokenizer.vocabulary_size:
            raise IntegrityError(f"{where}: id {high if low == 0 else low} is beyond its tokenizer's vocabulary")
        if part.lengths.max(initial=0) > record.max_seq_length:
            raise IntegrityError(f"{where}: a sentence has more than {record.max_seq_length} tokens")
    unknown_N = (examples.label_N < NO_LABEL) | (examples.label_N >= record.target.num_logits)
    if record.target.has_classes and unknown_N.any():
        raise IntegrityError(f"{where}: label {examples.label_N[unknown_N][0]} is not one of its labels")
    # One NaN would turn all weights into NaN at the first step that reads its row.
    if not np.isfinite(examples.teacher_NC).all():
        raise IntegrityError(f"{where}: a logit is not a finite number")
    return examples


def as_read(rows: Examples, config: StudentConfig) -> Examples:
    """Returns the rows in the form for a student."""
    # The stored ids have no special tokens, so each student adds those that it reads.
    ids1, *others = sequences(config, *rows.sequences)
    return replace(rows, ids1=ids1, ids2=others[0] if others else None)


def gold_tensor(target: Target, examples: Examples) -> torch.Tensor:
    """Returns training targets: float32 scores [N], int64 classes [N], or for multi-label tasks 0 and 1 [N, C]."""
    return torch.from_numpy(target.gold(examples.label_N, examples.score_N))


def classes_of(gold_N: Ints, teacher_NC: Floats) -> Ints:
    """Returns the gold class of each row, or without gold the teacher's prediction, int64 [N]."""
    return np.where(gold_N == NO_LABEL, teacher_NC.argmax(axis=1), gold_N)


def in_batches(
    ask: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    parts: Sequence[Ragged],
    width: int,
    device: torch.device,
    of_tokens: bool = False,
    is_sorted: bool = False,
) -> Floats:
    """Returns the outputs of a part of a student for inputs or for their tokens, computed in batches without gradients.

    Args:
        ask: a function of ids_T and starts_S. See `Student.logits`.
        parts: the inputs' N sequences, of two per input the second ones apart.
        width: the number of outputs per input or token.
        device: the student's.
        of_tokens: whether each token of the single sequence has outputs.
        is_sorted: whether batches have inputs of similar lengths, which need little padding, instead of their order.

    Returns:
        float32 [N, width], or of tokens [T, width].
    """
    lengths_N = np.max([part.lengths for part in parts], axis=0)
    # A stable sort gives the same batches on every machine.
    order, size = (lengths_N.argsort(kind="stable"), 256) if is_sorted else (np.arange(len(lengths_N)), 1024)
    places = Ragged(np.arange(len(parts[0].flat)), parts[0].offsets) if of_tokens else None
    numbers_NC = np.empty((len(order) if places is None else len(places.flat), width), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            taken = stacked([part.take(rows) for part in parts])
            ids_T, starts_S = (torch.from_numpy(part).to(device) for part in (taken.flat, taken.offsets))
            numbers_NC[rows if places is None else places.take(rows).flat] = ask(ids_T, starts_S).cpu().numpy()
    return numbers_NC


def with_groups(logit_set: ExampleSet, rows: Examples, column: str | None) -> Examples:
    """Returns training rows of a set with their groups. See `groups_to_hold_out`."""
    is_scored_N = is_scored(rows, logit_set.record.target)
    source_N = rows.key_N2[is_scored_N, 0]
    columns = ("source_row",) if column else ("source_row", "sentence1", "sentence2")
    inputs = logit_set.read(TRAIN, columns, ORIGINALS)
    inputs = inputs.filter(pa.array(np.isin(inputs.column("source_row").to_numpy(), source_N)))
    group_N = np.zeros(len(rows), dtype=np.int64)
    group_N[is_scored_N] = groups_to_hold_out(logit_set.sets[0].root, inputs, column)
    return replace(rows, group_N=group_N)


def groups_to_hold_out(root: Path, inputs: pa.Table, column: str | None) -> Ints:
    """Returns the number of each row's group [N]: near copies, or rows with the same value in a column.

    Args:
        root: the folder of their set.
        inputs: with the columns ``source_row``, and without a column of groups ``sentence1`` and ``sentence2``.
        column: the name of a column that the set keeps.

    Raises:
        ConfigError: if the set keeps no such column.
    """
    if column is None:
        group_N = groups_of(inputs)
        console.note(f"near copies: {counted_groups(group_N)}. They are held out together")
        return group_N
    source_N: Ints = inputs.column("source_row").to_numpy()
    return groups_by_file_column(root, TRAIN, column)[source_N]


def hold_out(rows: Examples, target: Target, share: float) -> tuple[Examples, Examples]:
    """Divides training rows into rows for training and held-out rows.

    Source rows with gold are held out together with their group. Their variants are in neither part. All rows without
    gold are used for training.

    Args:
        rows: training rows.
        target: the target of their task.
        share: the share of the source rows with gold to hold out.

    Raises:
        DataError: if no row would be held out, or no row would be left.
    """
    source_N, _ = rows.key_N2.T
    is_scored_N = is_scored(rows, target)
    # Rows are in the order of their keys, so the numbers ascend and the teacher's choice can be repeated.
    scored = source_N[is_scored_N]
    # Variants share their origin's meaning, so a held-out row's variants would leak it into training.
    group_N = scored if rows.group_N is None else rows.group_N[is_scored_N]
    is_held_N = np.isin(source_N, scored[held_out_rows(group_N, share)])
    return rows.taken(np.flatnonzero(~is_held_N)), rows.taken(np.flatnonzero(is_held_N & is_scored_N))


def is_scored(rows: Examples, target: Target) -> Bools:
    """Which rows can be held out [N]: those that have gold and are no variants."""
    return np.asarray(has_gold(target, rows.label_N, rows.score_N) & (rows.key_N2[:, 1] == 0))


def row_weights(class_weights: ClassWeights | None, examples: Examples) -> Floats:
    """Returns the factors of each row's losses, of logits and of layers, float32 [N]."""
    return examples.weight_N if class_weights is None else examples.weight_N * balanced_weights(examples)


def balanced_weights(examples: Examples) -> Floats:
    """Returns weights with which every existing class counts the same, float32 [N], with the rows' weighted mean 1.

    A row without gold, such as a variant, counts as the class that its teacher predicts.
    """
    _, place_N = np.unique(classes_of(examples.label_N, examples.teacher_NC), return_inverse=True)
    total_C = np.bincount(place_N, weights=examples.weight_N)
    # Classes without rows would divide by 0, and their weight is never read.
    weight_C = np.divide(total_C.sum() / (total_C > 0).sum(), total_C, out=np.zeros_like(total_C), where=total_C > 0)
    return np.asarray(weight_C[place_N], dtype=np.float32)


def make_batches(head: HeadKind, lengths_N: Ints, batch_size: int, seed: int) -> EpochBatches:
    """Returns the row numbers of each step, of similar lengths if the head can be trained on such batches."""
    # Equal lengths turn sorting off: batch norm needs batches that are drawn from all rows.
    sorted_by_N = lengths_N if HEADS[head].sorted_batches else np.zeros_like(lengths_N)
    return EpochBatches(sorted_by_N, batch_size, seed)
