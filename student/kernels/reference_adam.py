"""Adam on rows in plain torch: any device, any floating point type.

Shapes: T tokens, R distinct rows, V rows, X numbers of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from student.kernels.missed_moves import MissedMoves


class Rates(NamedTuple):
    """How far a step of AdamW goes; gradients are multiplied by ``scale`` first."""

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
        row_of_K: which of the rows each of them belongs to.
    """

    rows_R: Tensor
    tokens_K: Tensor
    row_of_K: Tensor


def as_kernel_tables(states: Sequence[RowState]) -> Sequence[RowState]:
    """Returns the states as the other functions take them: these take them as they are."""
    return states


def group(ids_T: Tensor, num_rows: int, padding_idx: int) -> Groups:
    """Groups tokens by row, those of the padding left out."""
    if bool(((ids_T < 0) | (ids_T >= num_rows)).any()):
        raise IndexError(f"an id is not a row of a table of {num_rows}")
    tokens_K = (ids_T != padding_idx).nonzero().squeeze(1)
    rows_R, row_of_K = torch.unique(ids_T[tokens_K], return_inverse=True)
    return Groups(rows_R, tokens_K, row_of_K)


def sum_gradients(states: Sequence[RowState], groups: Groups) -> float:
    """Adds up the gradients of each row's tokens, in the gradients of the first R tokens; the sum of all squares."""
    squares = 0.0
    for state in states:
        sum_RX = state.gradient_TX.new_zeros(len(groups.rows_R), state.gradient_TX.shape[1])
        sum_RX.index_add_(0, groups.row_of_K, state.gradient_TX[groups.tokens_K])
        state.gradient_TX[: len(sum_RX)] = sum_RX
        squares += float(sum_RX.square().sum())
    return squares


def squares(gradients: Sequence[Tensor]) -> float:
    """The sum of the squares of all gradients."""
    return float(torch.nn.utils.get_total_norm(gradients)) ** 2


def catch_up(states: Sequence[RowState], rows_R: Tensor, missed: MissedMoves, eps: float) -> None:
    """Brings the values of rows (all different) to where dense Adam would have them after the last step."""
    rows_R = rows_R[missed.row_V[rows_R] < missed.step]
    for state in states:
        tiny = torch.finfo(state.value_VX.dtype).tiny  # no move at all, as with a rate of 0, must divide nothing by 0
        large_R1, small_R1, kept_R1 = (
            part.clamp(min=tiny).to(state.value_VX.dtype).unsqueeze(1) for part in missed.moves(rows_R)
        )
        size_RX = state.v_VX[rows_R].sqrt_().div_(large_R1).add_(eps / small_R1)
        value_RX = state.value_VX[rows_R].mul_(kept_R1).addcdiv_(state.m_VX[rows_R], size_RX, value=-1)
        state.value_VX.index_copy_(0, rows_R, value_RX)
    missed.row_V[rows_R] = missed.step


def step(states: Sequence[RowState], groups: Groups, missed: MissedMoves, rates: Rates) -> None:
    """One step of AdamW on rows that are up to date, with the sums of their gradients."""
    rows_R, (beta1, beta2) = groups.rows_R, (missed.beta1, missed.beta2)
    lr, weight_decay, eps, scale = rates
    number = missed.step + 1
    for state in states:
        decay1_R1, decay2_R1 = (part.to(state.m_VX.dtype).unsqueeze(1) for part in missed.decays(rows_R))
        gradient_RX = state.gradient_TX[: len(rows_R)] * scale
        m_RX = state.m_VX[rows_R].mul_(decay1_R1).lerp_(gradient_RX, 1 - beta1)
        v_RX = state.v_VX[rows_R].mul_(decay2_R1 * beta2).addcmul_(gradient_RX, gradient_RX, value=1 - beta2)
        state.m_VX.index_copy_(0, rows_R, m_RX)
        state.v_VX.index_copy_(0, rows_R, v_RX)
        size_RX = v_RX.sqrt_().div_((1 - beta2**number) ** 0.5).add_(eps)
        value_RX = state.value_VX[rows_R].mul_(1 - lr * weight_decay)
        state.value_VX.index_copy_(0, rows_R, value_RX.addcdiv_(m_RX, size_RX, value=-lr / (1 - beta1**number)))
    missed.row_V[rows_R] = missed.moments_V[rows_R] = number
    missed.step_taken(lr, weight_decay)
