"""The choices of ``--layer-loss``: distances of a student's layers from its teacher's, and the teacher's stored ones.

The distances are those of How to Distill your BERT. The stored layers are aligned with the student's tokens.

Each error is a number per sequence that only depends on its tokens. The published code also includes the padding in
softmax and mean, and gives short sequences less weight.

Hid-CLS-Contrast: a student's states of a row should be nearer to the teacher's states of that row than to those of
other rows. The first token's states of all chosen layers are concatenated, mapped to 128 numbers and scaled to length 1
(CRD, Tian et al. 2020, and on BERTs CoDIR, Sun et al. 2020). The other rows have other labels. The published code keeps
their mapped states in a memory that lags behind the maps, because its teacher would have to read the rows again. Here
the teacher's states of every row are stored, so the other rows always use the current maps.

Shapes: T tokens of N sequences end to end, S = N + 1 starts, H width, A heads, L tokens of the longest sequence, B rows
of a batch, K negatives of each, J = 1 + K rows to compare with, X distinct rows among all of these, D compared numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pipeline import console
from pipeline.arrays import Bools, Floats, Ints
from pipeline.sets.layers import LayerStore
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import LayersName
from pipeline.tasks.target import NO_LABEL, Target, gold_classes
from student.data import Examples, classes_of
from student.model.architecture import SpecialIds
from student.settings import LayerLossName

# The contrastive temperature is that of the published code of How to Distill your BERT.
TEMPERATURE = 0.07
# Masked scores get a finite number: minus infinity would give 0 * -inf = NaN in the divergence.
FAR_BELOW = -1e4


# Both sizes are those of the published code.
DIM, NEGATIVES = 128, 100


def state_error(student_TH: Tensor, teacher_TH: Tensor, starts_S: Tensor) -> Tensor:
    """Returns the mean squared error of each sequence's states, float32 [N] (Hid-Seq, or Hid-CLS for one token)."""
    # The mean over each sequence's own tokens gives short and long sequences the same weight.
    error_T, lengths_N = ((student_TH - teacher_TH) ** 2).mean(dim=1), starts_S.diff()
    sequence_T = torch.arange(len(lengths_N), device=lengths_N.device).repeat_interleave(lengths_N)
    return error_T.new_zeros(len(lengths_N)).index_add(0, sequence_T, error_T) / lengths_N.clamp(min=1)


def direction_error(student_TH: Tensor, teacher_TH: Tensor, starts_S: Tensor) -> Tensor:
    """Returns the patient loss (Sun et al. 2019), float32 [N]: `state_error` of states of length 1, summed over H."""
    unit = functional.normalize
    # The patient loss sums over the width. `state_error` averages over it, so the width multiplies back.
    return state_error(unit(student_TH, dim=1), unit(teacher_TH, dim=1), starts_S) * student_TH.shape[1]


def score_error(student_NALL: Tensor, teacher_NALL: Tensor, is_token_NL: Tensor) -> Tensor:
    """Returns the mean squared error of each sequence's scores before the softmax, float32 [N] (Att-MSE)."""
    # The stored squares are 0 beyond a row's end, and comparing them there would reward scores of 0.
    is_pair_NLL = is_token_NL[:, :, None] & is_token_NL[:, None]
    error_NLL = ((student_NALL - teacher_NALL) ** 2).mean(dim=1).masked_fill(~is_pair_NLL, 0)
    return error_NLL.sum(dim=(1, 2)) / is_pair_NLL.sum(dim=(1, 2)).clamp(min=1)


def share_divergence(student_NALL: Tensor, teacher_NALL: Tensor, is_token_NL: Tensor) -> Tensor:
    """Returns KL(teacher || student) of the softmax over rows of scores, nats, mean over rows and heads, float32 [N].

    For attention's scores it is Att-KL, and for the `relations` of values Val-KL.
    """
    scores = (teacher_NALL, student_NALL)
    # Padding is masked before the softmax, so that a row's loss does not depend on the other rows of its batch.
    hidden = ~is_token_NL[:, None, None]
    teacher, student = (functional.log_softmax(part.masked_fill(hidden, FAR_BELOW), dim=-1) for part in scores)
    divergence_NAL = (teacher.exp() * (teacher - student)).sum(dim=-1)
    # Rows of padding have a softmax, too, so their divergence is removed after the fact.
    divergence_NL = divergence_NAL.mean(dim=1).masked_fill(~is_token_NL, 0)
    return divergence_NL.sum(dim=1) / is_token_NL.sum(dim=1).clamp(min=1)


def contrast_error(likeness_BX: Tensor, place_BJ: Tensor) -> Tensor:
    """Returns -log of the first row's share in the softmax of J similarities, nats, float32 [B] (InfoNCE).

    Args:
        likeness_BX: cosines of each row's states and the teacher's of X rows.
        place_BJ: int64, the numbers among X of the compared rows, with the right one first.
    """
    # Log-softmax over the cosines is InfoNCE. It needs no estimate of the noise distribution, unlike NCE.
    return -functional.log_softmax(likeness_BX.gather(1, place_BJ) / TEMPERATURE, dim=1)[:, 0]


def relations(values_NALD: Tensor) -> Tensor:
    """Returns the scaled dot products of tokens' values, v v' / sqrt(D), [N, A, L, L] (MiniLM, Wang et al. 2020)."""
    relations_NALL: Tensor = values_NALD @ values_NALD.mT / values_NALD.shape[-1] ** 0.5
    return relations_NALL


@dataclass(frozen=True)
class LayerDistance:
    """A kind of loss between layers.

    Attributes:
        signal: the teacher's signal that it needs.
        error: the loss of each row from states [T, H] and their starts, or from squares [B, A, L, L] and their mask.
            None for `Contrast`, which compares all layers at once.
        needs_attention: whether it needs a student with attention.
    """

    signal: LayersName
    error: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    needs_attention: bool = False


LAYER_LOSSES: dict[LayerLossName, LayerDistance] = {
    "hid-cls": LayerDistance("cls", state_error),
    "hid-cls-contrast": LayerDistance("cls", None),
    "pkd": LayerDistance("cls", direction_error),
    "hid-seq": LayerDistance("states", state_error),
    "att-mse": LayerDistance("attention", score_error, needs_attention=True),
    "att-kl": LayerDistance("attention", share_divergence, needs_attention=True),
    "val-kl": LayerDistance("values", share_divergence, needs_attention=True),
}


def kinds(target: Target, examples: Examples) -> Ints:
    """Returns numbers that are equal for rows with the same label or labels, int64 [N].

    A row without gold counts as the label that its teacher predicts.
    """
    if target.has_label_lists:
        # Without gold, the teacher's predictions (logit above 0) decide which rows count as other labels.
        said_NC = np.where(examples.label_N == NO_LABEL, examples.teacher_NC > 0, examples.label_N)
        return np.unique(said_NC, axis=0, return_inverse=True)[1].reshape(-1)
    # Scores must be binned: without classes there are no rows of another kind to contrast with.
    return classes_of(gold_classes(target, examples.label_N, examples.score_N), examples.teacher_NC)


def negatives(kind_N: Ints, is_known_N: Bools, rows: Ints) -> Ints:
    """Draws known rows of another kind for each row, with replacement. Returns their numbers, int64 [B, NEGATIVES]."""
    drawn_BK = np.empty((len(rows), NEGATIVES), dtype=np.int64)
    kind_B = kind_N[rows]
    for kind in np.unique(kind_B):
        # Rows of the same label are never negatives: pushing them apart would work against the task loss.
        others = np.flatnonzero(is_known_N & (kind_N != kind))
        is_of_kind_B = kind_B == kind
        # Torch's generator is seeded for each step, so a resumed run draws the same negatives.
        chosen = torch.randint(len(others), (int(is_of_kind_B.sum()), NEGATIVES))
        drawn_BK[is_of_kind_B] = others[chosen.numpy()]
    return drawn_BK


def first_signal(record: SetRecord) -> LayersName:
    """Returns the signal with the first token's states: ``cls``, or the states of all tokens."""
    return "cls" if "cls" in stored_layers(record) else "states"


def named_layers(flag: str | None) -> tuple[int, ...]:
    """Returns the numbers in a flag such as 2,4,6. Empty without the flag."""
    return tuple(int(layer) for layer in flag.split(",")) if flag else ()


def stored_layers(record: SetRecord) -> dict[LayersName, tuple[int, ...]]:
    """Returns the layers of each signal in a set."""
    return {signal.name: signal.layers for signal in record.signals.layer_signals}


@dataclass(frozen=True)
class Frame:
    """The number of special tokens that the teacher reads before, between and after the sentences of a row."""

    before: int
    between: int
    after: int

    @classmethod
    def of(cls, special_ids: SpecialIds, is_pair: bool) -> "Frame":
        """Returns the frame of a tokenizer. A single sentence has no tokens between."""
        # BERT reads `[CLS] a [SEP] b [SEP]`, while a matrix student reads a and b alone, so positions differ.
        before, between, after = (len(ids) for ids in special_ids)
        return cls(before, between if is_pair else 0, after)

    def lengths(self, examples: Examples) -> Ints:
        """Returns the number of the teacher's tokens for each row [N]."""
        parts = sum(part.lengths for part in examples.sequences)
        return np.asarray(parts + self.before + self.between + self.after)

    def slices(self, lengths: tuple[int, ...]) -> Iterator[slice]:
        """Yields the slice of each sentence's tokens within the tokens of a row."""
        start = self.before
        for length in lengths:
            yield slice(start, start + length)
            start += length + self.between


class LayerTargets:
    """A signal's stored layers for a student's training rows.

    Args:
        store: the layers.
        examples: the rows in the student's form.
        lengths_N: required number of the teacher's tokens for a row to be compared. Default: any.
        frame: the teacher's special tokens around sentences, or None for a student that reads them as well.

    Attributes:
        is_known_N: which rows have the signal.
    """

    def __init__(
        self, store: LayerStore, examples: Examples, lengths_N: Ints | None = None, frame: Frame | None = None
    ) -> None:
        self.store, self._frame = store, frame
        # Rows are joined by key and never by position, because a signal may exist for a part of the rows only.
        self._place_N = store.places(*examples.key_N2.T)
        self._lengths = [part.lengths for part in examples.sequences]
        is_there_N = self._place_N >= 0
        self.is_known_N = is_there_N.copy()
        if lengths_N is not None:
            # Different lengths mean different tokens, for example after pruning or truncation, and tokens could not be
            # aligned.
            self.is_known_N[is_there_N] = store.length_R[self._place_N[is_there_N]] == lengths_N[is_there_N]
        others = int(np.count_nonzero(is_there_N & ~self.is_known_N))
        if others:
            console.warn(f"{store.signal.name}: {others:,} rows with other tokens for the student are left out")

    @property
    def width(self) -> int:
        """H, or A for squares of scores."""
        # One stored row gives the width, so the record need not repeat it for every signal.
        (first,) = self.store.rows(self.store.signal.layers[0], self._place_N[self.is_known_N][:1])
        return int(first.shape[0] if first.ndim == 3 else first.shape[1])

    def first(self, layer: int, rows: Ints) -> Tensor:
        """Returns the state of each row's first token, float32 [B, H]."""
        return torch.from_numpy(np.concatenate(self.store.rows(layer, self._place_N[rows], most_tokens=1)))

    def states(self, layer: int, rows: Ints) -> Tensor:
        """Returns the states of the student's tokens, float32 [T, H]. Second sentences come last."""
        states = self._rows(layer, rows)
        if self._frame is None:
            return torch.from_numpy(np.concatenate(states))
        # The student encodes all first sentences before all second ones, so the targets follow that order.
        parts: list[list[Floats]] = [[] for _ in self._lengths]
        for row, row_states in zip(rows, states, strict=True):
            lengths = tuple(int(length_N[row]) for length_N in self._lengths)
            for part, place in zip(parts, self._frame.slices(lengths), strict=True):
                part.append(row_states[place])
        return torch.from_numpy(np.concatenate([rows for part in parts for rows in part]))

    def squares(self, layer: int, rows: Ints, longest: int) -> Tensor:
        """Returns each head's number for each pair of tokens, float32 [B, A, L, L], 0 beyond a row's end."""
        squares = self._rows(layer, rows)
        padded = np.zeros((len(squares), len(squares[0]), longest, longest), dtype=np.float32)
        for row, square in zip(padded, squares, strict=True):
            length = square.shape[1]
            row[:, :length, :length] = square
        return torch.from_numpy(padded)

    def _rows(self, layer: int, rows: Ints) -> list[Floats]:
        return self.store.rows(layer, self._place_N[rows])
