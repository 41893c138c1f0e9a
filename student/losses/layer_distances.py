"""The choices of ``--layer-loss``: distances of a student's layers from its teacher's (How to Distill your BERT).

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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.arrays import Bools, Ints
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import LayersName
from pipeline.tasks.target import NO_LABEL, Target, gold_classes
from student.data import Examples, classes_of
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
