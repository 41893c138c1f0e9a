"""Adam for embedding tables: the work of a step is that of the rows in the batch, the result that of dense Adam.

Dense Adam also moves the rows that a batch does not use, by their momentum. Those moves are not skipped here (torch's
SparseAdam skips them, and ends elsewhere) but deferred: before a row is used again it makes up for what it has missed.

A row whose moments were m and v after step s moves at step k > s by a_k beta1^(k-s) m / (sqrt(v) c_k + eps), with
a_k = lr_k / (1 - beta1^k) and c_k = sqrt(beta2^(k-s) / (1 - beta2^k)). Where eps is small beside sqrt(v), which has the
size of the row's gradients, the sum over k is m / sqrt(v) times a number per row; where sqrt(v) is small beside eps, it
is m / eps times another. Both numbers are kept, and m / (sqrt(v) / first + eps / second) is right at both ends.

Shapes: V rows, F features, R rows of a batch, S steps.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


class RowAdam(torch.optim.Adam):
    """`torch.optim.Adam` for tables with sparse gradients, and other parameters; its state is the same.

    Args:
        tables: with a row for each id; all are used with the same ids. Those with dense gradients are treated as usual.
        others: the other parameters.
        lr: the learning rate; may be changed from step to step.
        weight_decay: of the other parameters, decoupled as in AdamW.
        settings: ``betas`` and ``eps``.
    """

    def __init__(
        self,
        tables: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
        lr: float,
        weight_decay: float = 0.0,
        **settings: Any,
    ) -> None:
        self._tables = list(tables)
        groups: list[dict[str, Any]] = [
            {"params": self._tables},
            {"params": list(others), "weight_decay": weight_decay},
        ]
        super().__init__(groups, lr=lr, fused=True, decoupled_weight_decay=True, **settings)
        self._missed: MissedMoves | None = None  # None: every row is where dense Adam has it

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Does one step; the rows with a gradient must be up to date, their gradients coalesced (`clip_gradients`)."""
        assert closure is None, "not built"
        gradients = [table.grad for table in self._tables]
        sparse = any(gradient is not None and gradient.is_sparse for gradient in gradients)
        if sparse:
            for table in self._tables:
                table.grad = None
        super().step()
        if sparse:
            self._step_rows(gradients)

    @torch.no_grad()
    def catch_up(self, ids: torch.Tensor | None = None) -> None:
        """Brings rows to where dense Adam would have them: those of ``ids`` (before they are used), or all."""
        missed = self._missed
        if missed is None:
            return
        rows_R = missed.behind(ids)
        large_R1, small_R1 = missed.moves(rows_R)
        eps_R1 = self.param_groups[0]["eps"] / small_R1
        for table in self._tables:
            state = self.state[table]
            size_RF = state["exp_avg_sq"][rows_R].sqrt_().div_(large_R1).add_(eps_R1)
            table.index_copy_(0, rows_R, table[rows_R].addcdiv_(state["exp_avg"][rows_R], size_RF, value=-1))
        missed.row_V[rows_R] = missed.step
        if ids is None:
            every_V = torch.arange(len(missed.row_V))
            for table in self._tables:
                for name, decay_V1 in zip(("exp_avg", "exp_avg_sq"), missed.decays(every_V), strict=True):
                    self.state[table][name].mul_(decay_V1)
            self._missed = None

    def _step_rows(self, gradients: Sequence[torch.Tensor | None]) -> None:
        group = self.param_groups[0]
        lr, eps, (beta1, beta2) = group["lr"], group["eps"], group["betas"]
        for table, gradient in zip(self._tables, gradients, strict=True):
            assert gradient is not None, "all tables are used with the same ids"
            state = self.state[table]
            if not state:
                zeros = {name: torch.zeros_like(table) for name in ("exp_avg", "exp_avg_sq")}
                state.update({"step": torch.zeros(()), **zeros})
            if self._missed is None:
                self._missed = MissedMoves(table, int(state["step"]), beta1, beta2)
            rows_R, gradient_RF = gradient.indices()[0], gradient.values()
            decay1_R1, decay2_R1 = self._missed.decays(rows_R)
            state["step"] += 1
            step = int(state["step"])
            m_RF = state["exp_avg"][rows_R].mul_(decay1_R1).lerp_(gradient_RF, 1 - beta1)
            v_RF = state["exp_avg_sq"][rows_R].mul_(decay2_R1 * beta2)
            v_RF.addcmul_(gradient_RF, gradient_RF, value=1 - beta2)
            state["exp_avg"].index_copy_(0, rows_R, m_RF)
            state["exp_avg_sq"].index_copy_(0, rows_R, v_RF)
            size_RF = v_RF.sqrt_().div_((1 - beta2**step) ** 0.5).add_(eps)
            row_RF = table[rows_R].addcdiv_(m_RF, size_RF, value=-lr / (1 - beta1**step))
            table.index_copy_(0, rows_R, row_RF)
        assert self._missed is not None
        self._missed.step_taken(rows_R, lr)


class MissedMoves:
    """Which rows have missed which steps, and what those would have done to them.

    Attributes:
        step: the last step.
        row_V: the step that a row's values are up to date with.
        moments_V: the step that its moments are up to date with, the last that it took part in.
    """

    def __init__(self, table_VF: torch.Tensor, step: int, beta1: float, beta2: float) -> None:
        self.step = self._first = step
        self._beta1, self._beta2 = beta1, beta2
        self._dtype = table_VF.dtype
        self.row_V = torch.full((len(table_VF),), step)
        self.moments_V = torch.full((len(table_VF),), step)
        self._large_S = torch.zeros(1, dtype=torch.float64)  # by s, from the first: the sum of a_k beta1^(k-s) / c_k
        self._small_S = torch.zeros(1, dtype=torch.float64)  # by s, from the first: the sum of a_k beta1^(k-s)

    def behind(self, ids: torch.Tensor | None) -> torch.Tensor:
        """The rows that are not up to date, among ids or all; each once."""
        behind_V = self.row_V < self.step
        if ids is not None:
            used_V = torch.zeros_like(behind_V)
            used_V[ids.flatten()] = True
            behind_V &= used_V
        return behind_V.nonzero().squeeze(1)

    def moves(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """How far rows have to move, in units of m / sqrt(v) and of m / eps of their moments; each [R, 1]."""
        row_R = self.row_V[rows_R]
        gap_R, s_R = (row_R - self.moments_V[rows_R]).double(), row_R - self._first
        decay_R = self._beta1**gap_R
        return self._columns(self._large_S[s_R] * decay_R / self._beta2 ** (gap_R / 2), self._small_S[s_R] * decay_R)

    def decays(self, rows_R: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What is left of the first and second moments of rows; each [R, 1]."""
        gap_R = (self.step - self.moments_V[rows_R]).double()
        return self._columns(self._beta1**gap_R, self._beta2**gap_R)

    def step_taken(self, rows_R: torch.Tensor, lr: float) -> None:
        """Records a step in which these rows took part."""
        self.step += 1
        gap_S = torch.arange(len(self._large_S), 0, -1, dtype=torch.float64)
        move_S = lr / (1 - self._beta1**self.step) * self._beta1**gap_S
        now = torch.zeros(1, dtype=torch.float64)
        self._small_S = torch.cat([self._small_S + move_S, now])
        self._large_S = torch.cat([self._large_S + move_S * self._root(gap_S), now])
        self.row_V[rows_R] = self.moments_V[rows_R] = self.step

    def _root(self, gap_S: torch.Tensor) -> torch.Tensor:
        return ((1 - self._beta2**self.step) / self._beta2**gap_S).sqrt()

    def _columns(self, *values_R: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tiny = torch.finfo(self._dtype).tiny  # no move at all, as with a learning rate of 0, must divide nothing by 0
        return tuple(value_R.clamp(min=tiny).to(self._dtype).unsqueeze(1) for value_R in values_R)


def clip_gradients(parameters: Iterable[torch.Tensor], max_norm: float) -> None:
    """`torch.nn.utils.clip_grad_norm_` that also takes sparse gradients, and leaves them coalesced."""
    values = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm = torch.nn.utils.get_total_norm(values)
    torch._foreach_mul_(values, (max_norm / (norm + 1e-6)).clamp(max=1))
