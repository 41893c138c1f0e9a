"""Lazy Adam on the rows of tables, in plain torch: any device, any floating point type.

A batch uses few rows of a table. Under dense Adam, the other rows still move by their momentum. These updates are
deferred: before a row is used again, it gets the updates of all steps since its last use at once.

A row whose moments were m and v after step s moves at step k > s by a_k beta1^(k-s) m / (sqrt(v) c_k + eps), with a_k =
lr_k / (1 - beta1^k) and c_k = sqrt(beta2^(k-s) / (1 - beta2^k)). If eps is small compared with sqrt(v), which has the
size of the row's gradients, the sum over k is m / sqrt(v) times a number per row. If sqrt(v) is small compared with
eps, the sum is m / eps times another number. Both numbers are stored, and m / (sqrt(v) / large + eps / small) is right
at both ends.

Between the ends it is not exact: 1 / (x + y) is replaced by its values at x = 0 and y = 0. With beta = (0.9, 0.999), a
row that misses any number of steps is within 1 % of its exact updates, as the tests show.

Weight decay multiplies a value by 1 - lr_k wd at step k. The remaining share of a value since step s is a quotient of
two products over all steps, and so is the remaining share of an update, so that numbers per step are also enough here.

Shapes: T tokens, R distinct rows, V rows, S steps, X numbers of a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.arrays import Floats64

# This is below float64's relative precision of 1e-16, so dropping smaller shares cannot change a sum.
NEGLIGIBLE = 1e-18


class LazyAdamTerms:
    """The missed updates of rows since each step, as two numbers per step.

    Attributes:
        step: the last step.
        first: the step at which every row was up to date at the beginning.
        value_step_V: int64, the step of a row's current values.
        moment_step_V: int64, the step of its current moments, which is the last step with a gradient for it.
        large_S: by s, from the first: the sum of a_k beta1^(k-s) / (c_k decay_k).
        small_S: by s, from the first: the sum of a_k beta1^(k-s) / decay_k.
        decay_S: by k, from the first: the share of a value that remains after weight decay.
        small_powers: beta1^(k-s), for the last steps s that a step k is added to.
        large_powers: beta1^(k-s) / beta2^((k-s)/2), for the last steps s that a step k is added to.
    """

    def __init__(self, num_rows: int, step: int, beta1: float, beta2: float) -> None:
        self.step = self.first = step
        self.beta1, self.beta2 = beta1, beta2
        # Values and moments need separate steps: catching up moves a row's values and leaves its moments as they were.
        self.value_step_V = torch.full((num_rows,), step)
        self.moment_step_V = torch.full((num_rows,), step)
        self._reserve(1024)

    def record_step(self, lr: float, weight_decay: float) -> None:
        """Records a step. Callers note the rows with gradients in ``value_step_V`` and ``moment_step_V``."""
        self.reserve_step()
        self.step += 1
        now = self.step - self.first
        self.decay_S[now] = self.decay_S[now - 1] * (1 - lr * weight_decay)
        # Each step updates only a window of earlier steps, otherwise the cost of a step would grow with the run.
        some = min(now, len(self.small_powers))
        # Dividing by the decay so far lets `updates` multiply by the current decay once, instead of rescaling all sums.
        move = lr / (1 - self.beta1**self.step) / self.decay_S[now]
        self.small_S[now - some : now] += move * self.small_powers[-some:]
        move *= math.sqrt(1 - self.beta2**self.step)
        self.large_S[now - some : now] += move * self.large_powers[-some:]

    def reserve_step(self) -> None:
        """Grows the arrays for the next step."""
        next_one = self.step + 1 - self.first
        # Doubling the arrays keeps the total cost of copying proportional to the number of steps.
        if next_one == len(self.decay_S):
            self._reserve(2 * next_one)

    def rows_behind(self) -> torch.Tensor:
        """Returns the rows that are not up to date."""
        return (self.value_step_V < self.step).nonzero().squeeze(1)

    def updates(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the deferred updates of rows: large and small of the formula above, and the share left of the values.

        All are float64 [R].
        """
        row_R = self.value_step_V[rows_R]
        # The sums start at the values' step, but the moments are older, so beta must first decay over the gap.
        gap_R, s_R = (row_R - self.moment_step_V[rows_R]).double(), (row_R - self.first).numpy()
        decay, share_R = self.decay_S[self.step - self.first], self.beta1**gap_R
        large_R = decay * torch.from_numpy(self.large_S[s_R]) * share_R / self.beta2 ** (gap_R / 2)
        small_R = decay * torch.from_numpy(self.small_S[s_R]) * share_R
        return large_R, small_R, torch.from_numpy(decay / self.decay_S[s_R])

    def moment_decays(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the remaining shares of the first and second moments of rows, float64 [R]."""
        gap_R = (self.step - self.moment_step_V[rows_R]).double()
        return self.beta1**gap_R, self.beta2**gap_R

    def _reserve(self, size: int) -> None:
        # The decay of a step that has not happened is 1, because a value keeps its whole share until then.
        large_S, small_S, decay_S = np.zeros(size), np.zeros(size), np.ones(size)
        if size > 1024:
            old = len(self.decay_S)
            large_S[:old], small_S[:old], decay_S[:old] = self.large_S, self.small_S, self.decay_S
        self.large_S: Floats64 = large_S
        self.small_S: Floats64 = small_S
        self.decay_S: Floats64 = decay_S
        # An update decays as beta1^k or as ratio^k, so steps before this window add nothing measurable to the sums.
        ratio = self.beta1 / math.sqrt(self.beta2)
        window = 1 if ratio == 0 else size if ratio >= 1 else math.ceil(math.log(NEGLIGIBLE) / math.log(ratio))
        gap_S = np.arange(min(size, window), 0, -1)
        self.small_powers, self.large_powers = self.beta1**gap_S, ratio**gap_S


class Rates(NamedTuple):
    """The settings of one step of AdamW. Gradients are multiplied by ``scale`` first."""

    lr: float
    weight_decay: float
    eps: float
    scale: float


@dataclass(frozen=True)
class RowState:
    """A table, its moments, and the gradients of a batch's tokens."""

    value_VX: Tensor
    m_VX: Tensor
    v_VX: Tensor
    gradient_TX: Tensor


@dataclass(frozen=True)
class Groups:
    """The distinct rows of a batch's tokens.

    Attributes:
        rows_R: their numbers.
        tokens_K: the tokens that are not padding.
        row_of_K: the row of each token.
    """

    rows_R: Tensor
    tokens_K: Tensor
    row_of_K: Tensor


def as_kernel_tables(states: Sequence[RowState]) -> Sequence[RowState]:
    """Returns the states for the other functions, here without a conversion."""
    return states


def group(ids_T: Tensor, num_rows: int, padding_idx: int) -> Groups:
    """Groups tokens by row, without padding."""
    if bool(((ids_T < 0) | (ids_T >= num_rows)).any()):
        raise IndexError(f"an id is not a row of a table of {num_rows}")
    # The padding row must stay the neutral element. A trained padding row makes results depend on the batch's padding.
    tokens_K = (ids_T != padding_idx).nonzero().squeeze(1)
    rows_R, row_of_K = torch.unique(ids_T[tokens_K], return_inverse=True)
    return Groups(rows_R, tokens_K, row_of_K)


def sum_gradients(states: Sequence[RowState], groups: Groups) -> float:
    """Adds up the gradients of each row's tokens in the gradients of the first R tokens.

    Returns the sum of all squares.
    """
    squares = 0.0
    # The sums replace the gradients of the first R tokens, where `step` expects them.
    for state in states:
        sum_RX = state.gradient_TX.new_zeros(len(groups.rows_R), state.gradient_TX.shape[1])
        sum_RX.index_add_(0, groups.row_of_K, state.gradient_TX[groups.tokens_K])
        state.gradient_TX[: len(sum_RX)] = sum_RX
        squares += float(sum_RX.square().sum())
    return squares


def squares(gradients: Sequence[Tensor]) -> float:
    """Returns the sum of the squares of all gradients."""
    return float(torch.nn.utils.get_total_norm(gradients)) ** 2


def catch_up(states: Sequence[RowState], rows_R: Tensor, lazy: LazyAdamTerms, eps: float) -> None:
    """Updates the values of distinct rows to those of dense Adam after the last step."""
    rows_R = rows_R[lazy.value_step_V[rows_R] < lazy.step]
    for state in states:
        # With a learning rate of 0 both sums are 0, and 0 / 0 would turn values into NaN.
        tiny = torch.finfo(state.value_VX.dtype).tiny
        large_R1, small_R1, decay_R1 = (
            part.clamp(min=tiny).to(state.value_VX.dtype).unsqueeze(1) for part in lazy.updates(rows_R)
        )
        # This is the interpolation of the module docstring: exact where sqrt(v) is far from eps, and within 1 % in
        # tests between.
        size_RX = state.v_VX[rows_R].sqrt_().div_(large_R1).add_(eps / small_R1)
        value_RX = state.value_VX[rows_R].mul_(decay_R1).addcdiv_(state.m_VX[rows_R], size_RX, value=-1)
        state.value_VX.index_copy_(0, rows_R, value_RX)
    # Only the values advance here: the moments still belong to the last step in which the row had a gradient.
    lazy.value_step_V[rows_R] = lazy.step


def step(states: Sequence[RowState], groups: Groups, lazy: LazyAdamTerms, rates: Rates) -> None:
    """Takes one step of AdamW on rows that are up to date, with the sums of their gradients."""
    rows_R, (beta1, beta2) = groups.rows_R, (lazy.beta1, lazy.beta2)
    lr, weight_decay, eps, scale = rates
    # `record_step` runs last because `moment_decays` below must count only the steps before this one.
    number = lazy.step + 1
    for state in states:
        decay1_R1, decay2_R1 = (part.to(state.m_VX.dtype).unsqueeze(1) for part in lazy.moment_decays(rows_R))
        gradient_RX = state.gradient_TX[: len(rows_R)] * scale
        m_RX = state.m_VX[rows_R].mul_(decay1_R1).lerp_(gradient_RX, 1 - beta1)
        v_RX = state.v_VX[rows_R].mul_(decay2_R1 * beta2).addcmul_(gradient_RX, gradient_RX, value=1 - beta2)
        state.m_VX.index_copy_(0, rows_R, m_RX)
        state.v_VX.index_copy_(0, rows_R, v_RX)
        size_RX = v_RX.sqrt_().div_((1 - beta2**number) ** 0.5).add_(eps)
        value_RX = state.value_VX[rows_R].mul_(1 - lr * weight_decay)
        state.value_VX.index_copy_(0, rows_R, value_RX.addcdiv_(m_RX, size_RX, value=-lr / (1 - beta1**number)))
    lazy.value_step_V[rows_R] = lazy.moment_step_V[rows_R] = number
    lazy.record_step(lr, weight_decay)
