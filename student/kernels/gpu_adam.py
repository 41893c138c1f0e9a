"""Adam for embedding tables on the GPU: a step's work is that of the batch's rows, its result that of dense AdamW.

See `student.train.optimizer` for what the rows that a batch does not use miss, and how they make up for it. Here rows
also decay: dense AdamW multiplies every row by d_k = 1 - lr_k * weight_decay at step k, and then subtracts the step's
move.
With D_k = d_1 d_2 … d_k, a row that was up to date at step s and is used again after step t has become

    D_t / D_s * (row_s - the sum over s < k <= t of D_s / D_k * move_k)

so a move that came later was decayed less. D_s / D_k goes into the two numbers per s by which moves are summed up, and
log D_k is kept. Moments are brought up to date with the row, so one number per row tells what it has missed.

All counters lie on the GPU and nothing waits for it, so a step can be captured in a CUDA graph. What belongs to one row
is found by sorting the ids, and added up by one program: unlike atomic additions, the same sum every time.

Shapes: T tokens, V rows, F features, S steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from triton import language as tl

COLUMNS = tl.constexpr(512)  # of a row at once
TOKENS = tl.constexpr(8)  # whose gradients are added up at once
TINY = tl.constexpr(1e-30)  # in place of no moves at all, as with a learning rate of 0
OPTIONS = {"enable_fp_fusion": True}
NEGLIGIBLE = 1e-9  # share of a row's first missed move


class Runs(NamedTuple):
    """The tokens of a batch in the order of their ids: those of one row follow each other, the first speaks for all."""

    ids_T: torch.Tensor
    order_T: torch.Tensor

    @classmethod
    def of(cls, ids_T: torch.Tensor) -> "Runs":
        """Sorts ids; int64."""
        return cls(*torch.sort(ids_T, stable=True))


def row_sums(runs: Runs, grad_TF: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds up the gradients of the tokens of each row.

    Returns:
        sums_TF, float32, in the order of the runs; only the rows of firsts are filled. And the sum of the squares of
        all the sums, a scalar: what `clip_gradients` needs.
    """
    num_tokens, size = grad_TF.shape
    sums_TF = torch.empty_like(grad_TF)
    squares_TC = grad_TF.new_empty(num_tokens, triton.cdiv(size, COLUMNS.value))
    _row_sums[squares_TC.shape](*runs, grad_TF, sums_TF, squares_TC, num_tokens, size, **OPTIONS)
    return sums_TF, squares_TC.sum()


class GpuRowAdam:
    """AdamW for tables that are all used with the same ids, float32.

    Attributes:
        lr: a float64 scalar on the GPU; fill it with the next step's learning rate. lr * weight_decay is below 1.
        exp_avg: per table, the first moments.
        exp_avg_sq: per table, the second moments.

    Args:
        tables: each [V, F], contiguous; are changed in place.
        num_steps: the most steps that will be done.
        lr: the first learning rate.
        betas: with betas[0]² < betas[1], or missed moves would grow with the gap.
        eps: as for Adam.
        weight_decay: decoupled, as in AdamW.
    """

    def __init__(
        self,
        tables: Sequence[torch.Tensor],
        num_steps: int,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        assert betas[0] ** 2 < betas[1]
        assert eps > 0
        self.tables = list(tables)
        self.exp_avg = [torch.zeros_like(table) for table in tables]
        self.exp_avg_sq = [torch.zeros_like(table) for table in tables]
        new = tables[0].new_zeros
        self.lr = new((), dtype=torch.float64).fill_(lr)
        self._num_steps, self._betas, self._eps, self._weight_decay = num_steps, betas, eps, weight_decay
        self._step = new((), dtype=torch.int64)
        self._row_V = new(len(tables[0]), dtype=torch.int64)  # the step that a row is up to date with
        # by the step s that a row is up to date with: the sums of its missed moves in units of m / sqrt(v) and of
        # m / eps (MissedMoves in student.train.optimizer), and log D_s
        self._sums = [new(num_steps + 1, dtype=torch.float64) for _ in range(3)]
        self._window = 1
        while (betas[0] / betas[1] ** 0.5) ** self._window > NEGLIGIBLE:
            self._window *= 2

    def catch_up(self, runs: Runs | None = None) -> None:
        """Brings rows to where dense AdamW would have them: those of a batch (before they are used), or all."""
        if runs is None:
            every_V = torch.arange(len(self._row_V), device=self._row_V.device)
            runs = Runs(every_V, every_V)
        for table, m, v in zip(self.tables, self.exp_avg, self.exp_avg_sq, strict=True):
            _catch_up[(len(runs.ids_T),)](
                runs.ids_T,
                table,
                m,
                v,
                self._row_V,
                self._step,
                *self._sums,
                table.shape[1],
                self._eps,
                *self._betas,
                **OPTIONS,
            )
        self._row_V[runs.ids_T] = self._step

    def step(self, runs: Runs, sums: Sequence[torch.Tensor], scale: torch.Tensor) -> None:
        """Does one step.

        Args:
            runs: the batch's tokens, whose rows are up to date.
            sums: per table, what `row_sums` made of the gradients.
            scale: float32 scalar by which they are multiplied, to clip them.
        """
        torch._assert_async(self._step < self._num_steps, "more steps than GpuRowAdam was made for")
        _advance[(1,)](self._step, self.lr, *self._sums, self._weight_decay, *self._betas, self._window, **OPTIONS)
        for table, m, v, sums_TF in zip(self.tables, self.exp_avg, self.exp_avg_sq, sums, strict=True):
            _step_rows[(len(runs.ids_T),)](
                runs.ids_T, table, m, v, sums_TF, scale, self._step, self.lr, table.shape[1],
                self._eps, self._weight_decay, *self._betas, **OPTIONS,
            )  # fmt: skip
        self._row_V[runs.ids_T] = self._step


@triton.jit
def _power(BASE: tl.constexpr, exponent):
    """In float64."""
    return tl.exp(exponent.to(tl.float64) * tl.log(tl.full((), BASE, tl.float64)))


@triton.jit
def _is_first(ids, token):
    """Whether a token is the first of its run."""
    return (token == 0) | (tl.load(ids + token) != tl.load(ids + tl.maximum(token, 1) - 1))


@triton.jit
def _row_sums(ids, order, grad, sums, squares, num_tokens, size):
    token, piece = tl.program_id(0), tl.program_id(1)
    column = piece * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    if _is_first(ids, token):
        row = tl.load(ids + token)
        group = token
        more = True
        while more:
            member = group + tl.arange(0, TOKENS)
            same = tl.load(ids + member, mask=member < num_tokens, other=-1) == row
            place = tl.load(order + member, mask=same, other=0)[:, None] * size + column[None, :]
            inside = same[:, None] & (column < size)[None, :]
            total += tl.sum(tl.load(grad + place, mask=inside, other=0.0), axis=0)
            group += TOKENS
            more = tl.min(same.to(tl.int32)) == 1
        tl.store(sums + token.to(tl.int64) * size + column, total, mask=column < size)
    tl.store(squares + token * tl.num_programs(1) + piece, tl.sum(total * total))


@triton.jit
def _advance(
    step,
    lr,
    large,
    small,
    log_decay,
    weight_decay,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Counts the step, and adds its move to what the rows miss that have been up to date with an earlier one."""
    now = tl.load(step) + 1
    rate = tl.load(lr)
    decay_now = tl.load(log_decay + now - 1) + tl.log(1 - rate * weight_decay)
    gap = tl.arange(0, WINDOW) + 1
    inside = now - gap >= 0
    decay_then = tl.load(log_decay + now - gap, mask=inside, other=0.0)
    move = rate / (1 - _power(BETA1, now)) * _power(BETA1, gap) * tl.exp(decay_then - decay_now)
    root = tl.sqrt((1 - _power(BETA2, now)) / _power(BETA2, gap))
    tl.store(small + now - gap, tl.load(small + now - gap, mask=inside) + move, mask=inside)
    tl.store(large + now - gap, tl.load(large + now - gap, mask=inside) + move * root, mask=inside)
    tl.store(log_decay + now, decay_now)
    tl.debug_barrier()  # all threads have read the step
    tl.store(step, now)


@triton.jit
def _catch_up(
    ids, table, exp_avg, exp_avg_sq, rows, step, large, small, log_decay, size, eps,
    BETA1: tl.constexpr, BETA2: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    row = tl.load(ids + token)
    then, now = tl.load(rows + row), tl.load(step)
    if _is_first(ids, token) & (then < now):
        kept = tl.exp(tl.load(log_decay + now) - tl.load(log_decay + then)).to(tl.float32)
        decay1, decay2 = _power(BETA1, now - then).to(tl.float32), _power(BETA2, now - then).to(tl.float32)
        per_root = (1 / tl.maximum(tl.load(large + then), TINY)).to(tl.float32)
        per_eps = (eps / tl.maximum(tl.load(small + then), TINY)).to(tl.float32)
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            place = row * size + column
            weight = tl.load(table + place, mask=column < size)
            m = tl.load(exp_avg + place, mask=column < size, other=0.0)
            v = tl.load(exp_avg_sq + place, mask=column < size, other=0.0)
            move = m / (tl.sqrt(v) * per_root + per_eps)
            tl.store(table + place, kept * (weight - move), mask=column < size)
            tl.store(exp_avg + place, m * decay1, mask=column < size)
            tl.store(exp_avg_sq + place, v * decay2, mask=column < size)


@triton.jit
def _step_rows(
    ids, table, exp_avg, exp_avg_sq, sums, scale, step, lr, size, eps, weight_decay,
    BETA1: tl.constexpr, BETA2: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    if _is_first(ids, token):
        row, now, rate = tl.load(ids + token), tl.load(step), tl.load(lr)
        decay = (1 - rate * weight_decay).to(tl.float32)
        move = (rate / (1 - _power(BETA1, now))).to(tl.float32)
        per_root = (1 / tl.sqrt(1 - _power(BETA2, now))).to(tl.float32)
        for first in range(0, size, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            place = row * size + column
            gradient = tl.load(sums + token.to(tl.int64) * size + column, mask=column < size) * tl.load(scale)
            weight = tl.load(table + place, mask=column < size)
            m = BETA1 * tl.load(exp_avg + place, mask=column < size) + (1 - BETA1) * gradient
            v = BETA2 * tl.load(exp_avg_sq + place, mask=column < size) + (1 - BETA2) * gradient * gradient
            tl.store(table + place, decay * weight - move * m / (tl.sqrt(v) * per_root + eps), mask=column < size)
            tl.store(exp_avg + place, m, mask=column < size)
            tl.store(exp_avg_sq + place, v, mask=column < size)
