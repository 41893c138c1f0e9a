"""Which rows of a table have missed which of Adam's steps, and what those would have done to them.

A row whose moments were m and v after step s moves at step k > s by a_k beta1^(k-s) m / (sqrt(v) c_k + eps), with a_k =
lr_k / (1 - beta1^k) and c_k = sqrt(beta2^(k-s) / (1 - beta2^k)). Where eps is small beside sqrt(v), which has the
size of the row's gradients, the sum over k is m / sqrt(v) times a number per row; where sqrt(v) is small beside eps, it
is m / eps times another. Both numbers are kept, and m / (sqrt(v) / large + eps / small) is right at both ends.

Between the ends it is not exact: 1 / (x + y) is replaced by its values at x = 0 and y = 0. With beta = (0.9, 0.999) a
row that misses any number of steps is within 1 % of its moves there, see the tests.

Weight decay multiplies a value by 1 - lr_k wd at step k. What is left of a value since step s is a quotient of two
products over all steps, and what is left of a move likewise, so that numbers per step suffice here, too.

Shapes: V rows, S steps, R rows of a batch.
"""

import math

import numpy as np
import torch

from pipeline.arrays import Floats64

NEGLIGIBLE = 1e-18  # what is left of a move, compared with the first that was missed


class MissedMoves:
    """What rows have missed since a certain step.

    Attributes:
        step: the last step.
        first: the step that every row was up to date with at the beginning.
        row_V: int64, the step that a row's values are up to date with.
        moments_V: int64, the step that its moments are up to date with, the last that it took part in.
        large_S: by s, from the first: the sum of a_k beta1^(k-s) / (c_k kept_k).
        small_S: by s, from the first: the sum of a_k beta1^(k-s) / kept_k.
        kept_S: by k, from the first: what weight decay has left of a value.
        small_powers: beta1^(k-s), for the last steps s that a step k is added to.
        large_powers: beta1^(k-s) / beta2^((k-s)/2), likewise.
    """

    def __init__(self, num_rows: int, step: int, beta1: float, beta2: float) -> None:
        self.step = self.first = step
        self.beta1, self.beta2 = beta1, beta2
        self.row_V = torch.full((num_rows,), step)
        self.moments_V = torch.full((num_rows,), step)
        self._reserve(1024)

    def step_taken(self, lr: float, weight_decay: float) -> None:
        """Records a step; whoever took part in it notes that in ``row_V`` and ``moments_V``."""
        self.make_room()
        self.step += 1
        now = self.step - self.first
        self.kept_S[now] = self.kept_S[now - 1] * (1 - lr * weight_decay)
        some = min(now, len(self.small_powers))
        move = lr / (1 - self.beta1**self.step) / self.kept_S[now]
        self.small_S[now - some : now] += move * self.small_powers[-some:]
        move *= math.sqrt(1 - self.beta2**self.step)
        self.large_S[now - some : now] += move * self.large_powers[-some:]

    def make_room(self) -> None:
        """Sees to a place for the next step."""
        next_one = self.step + 1 - self.first
        if next_one == len(self.kept_S):
            self._reserve(2 * next_one)

    def behind(self) -> torch.Tensor:
        """The rows that are not up to date."""
        return (self.row_V < self.step).nonzero().squeeze(1)

    def moves(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What rows have to do: large and small of the formula above, and what is left of their values; float64 [R]."""
        row_R = self.row_V[rows_R]
        gap_R, s_R = (row_R - self.moments_V[rows_R]).double(), (row_R - self.first).numpy()
        kept, decay_R = self.kept_S[self.step - self.first], self.beta1**gap_R
        large_R = kept * torch.from_numpy(self.large_S[s_R]) * decay_R / self.beta2 ** (gap_R / 2)
        small_R = kept * torch.from_numpy(self.small_S[s_R]) * decay_R
        return large_R, small_R, torch.from_numpy(kept / self.kept_S[s_R])

    def decays(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is left of the first and second moments of rows; float64 [R]."""
        gap_R = (self.step - self.moments_V[rows_R]).double()
        return self.beta1**gap_R, self.beta2**gap_R

    def _reserve(self, size: int) -> None:
        large_S, small_S, kept_S = np.zeros(size), np.zeros(size), np.ones(size)
        if size > 1024:
            old = len(self.kept_S)
            large_S[:old], small_S[:old], kept_S[:old] = self.large_S, self.small_S, self.kept_S
        self.large_S: Floats64 = large_S
        self.small_S: Floats64 = small_S
        self.kept_S: Floats64 = kept_S
        ratio = self.beta1 / math.sqrt(self.beta2)
        window = 1 if ratio == 0 else size if ratio >= 1 else math.ceil(math.log(NEGLIGIBLE) / math.log(ratio))
        gap_S = np.arange(min(size, window), 0, -1)
        self.small_powers, self.large_powers = self.beta1**gap_S, ratio**gap_S
