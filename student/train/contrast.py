"""Hid-CLS-Contrast: a student's states of a row are to be nearer to its teacher's of that row than to those of others.

What is compared are the first token's states of all chosen layers, side by side, mapped to 128 numbers and brought to
length 1 (CRD, Tian et al. 2020; on BERTs CoDIR, Sun et al. 2020). The others are rows of other labels. The published
code keeps what it has seen of them in a memory that lags behind its maps, as its teacher would have to read them again;
here the teacher's states of every row are stored, so the others are mapped as the maps are now.

Shapes: N training rows, B rows of a batch, K negatives of each, J = 1 + K rows that it is compared with, X distinct
ones among all of these, D numbers that are compared.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.arrays import Bools, Ints
from pipeline.tasks.target import NO_LABEL, Target, gold_classes
from student.data import Examples, classes_of
from student.train.layer_losses import contrast_error
from student.train.layer_targets import LayerTargets

DIM, NEGATIVES = 128, 100  # of the published code


class Contrast(nn.Module):
    """The loss, and its two maps, which are trained with the student and then thrown away.

    Args:
        target: the teacher's states of the first token.
        layers: whose.
        own: numbers of the student's states, all layers together.
        kind_N: numbers that are the same for rows of the same label, see `kinds`.
    """

    def __init__(self, target: LayerTargets, layers: Sequence[int], own: int, kind_N: Ints) -> None:
        super().__init__()
        self._target, self._layers, self._kind_N = target, tuple(layers), kind_N
        self.student_map = nn.Linear(own, DIM)
        self.teacher_map = nn.Linear(len(self._layers) * target.width, DIM)

    def forward(self, states_BF: Tensor, rows: Ints) -> Tensor:
        """The loss of each row, float32 [B], whose negatives torch's generator of the CPU draws.

        Args:
            states_BF: the student's.
            rows: numbers of the training rows, all of them with states.
        """
        compared_BJ = np.concatenate([rows[:, None], negatives(self._kind_N, self._target.is_known_N, rows)], axis=1)
        distinct_X, place_BJ = np.unique(compared_BJ, return_inverse=True)
        stored = [self._target.first(layer, distinct_X) for layer in self._layers]
        teacher_XD = functional.normalize(self.teacher_map(torch.cat(stored, dim=1).to(states_BF.device)))
        student_BD = functional.normalize(self.student_map(states_BF))
        places = torch.from_numpy(place_BJ.reshape(compared_BJ.shape)).to(states_BF.device)
        return contrast_error(student_BD @ teacher_XD.mT, places)


def kinds(target: Target, examples: Examples) -> Ints:
    """Numbers that are the same for rows of the same label, or of the same labels, int64 [N].

    A row without gold is of the label that its teacher says.
    """
    if target.kind == "labels":
        said_NC = np.where(examples.label_N == NO_LABEL, examples.teacher_NC > 0, examples.label_N)
        return np.unique(said_NC, axis=0, return_inverse=True)[1].reshape(-1)
    return classes_of(gold_classes(target, examples.label_N, examples.score_N), examples.teacher_NC)


def negatives(kind_N: Ints, is_known_N: Bools, rows: Ints) -> Ints:
    """Numbers of known rows of another kind for each of some rows, drawn with replacement, int64 [B, NEGATIVES]."""
    drawn_BK = np.empty((len(rows), NEGATIVES), dtype=np.int64)
    kind_B = kind_N[rows]
    for kind in np.unique(kind_B):
        others = np.flatnonzero(is_known_N & (kind_N != kind))
        is_of_kind_B = kind_B == kind
        chosen = torch.randint(len(others), (int(is_of_kind_B.sum()), NEGATIVES))
        drawn_BK[is_of_kind_B] = others[chosen.numpy()]
    return drawn_BK
