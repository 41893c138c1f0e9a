"""Adam for embedding tables: the work of a step is that of the rows in the batch, the result that of dense Adam.

Dense Adam also moves the rows that a batch does not use, by their momentum. Those moves are not skipped here (torch's
SparseAdam skips them, and ends elsewhere) but deferred: before a row is used again it makes up for what it has missed,
see `student.kernels.missed_moves`.

Shapes: T tokens of a batch, V rows, X numbers of a row.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from student.kernels import compiled, compiled_adam, reference_adam
from student.kernels.missed_moves import MissedMoves
from student.kernels.reference_adam import Rates, RowState
from student.model.products import NO_PADDING
from student.model.tables import put_side_by_side

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class UsedRows:
    """The rows that a batch uses, and what takes the gradients of its tokens.

    Attributes:
        groups: the batch's tokens by row.
        gradients: [T, X] per table, written by the backward pass.
        is_filled: whether it has.
        more: what further readings of the same tokens have written.
        squares: the sum of the squares of the rows' gradients, once they are added up.
        scale: what they are to be multiplied by.
    """

    groups: Any
    gradients: list[Tensor]
    is_filled: bool = False
    more: list[list[Tensor]] = field(default_factory=list)
    squares: float | None = None
    scale: float = 1.0

    def buffers(self) -> list[Tensor]:
        """What the backward pass of a reading of the tokens is to write to; there may be several readings."""
        if not self.is_filled:
            self.is_filled = True
            return self.gradients
        self.more.append([torch.empty_like(gradient_TX) for gradient_TX in self.gradients])
        return self.more[-1]

    def add_up(self) -> None:
        """Adds the gradients of further readings to those of the first."""
        for gradients in self.more:
            torch._foreach_add_(self.gradients, gradients)
        self.more.clear()


class RowAdam(torch.optim.Adam):
    """`torch.optim.AdamW` for tables of which a batch uses a few rows, and other parameters; its state is the same.

    A step: `use` the ids, compute the loss from what it returns, then backward, `clip_gradients`, `step`. Tables that
    get a dense gradient instead are treated as usual.

    Args:
        tables: with a row for each id; all are used with the same ids.
        others: the other parameters.
        lr: the learning rate; may be changed from step to step.
        weight_decay: of the other parameters, decoupled.
        table_weight_decay: of the tables, of every row at every step; a row for padding does not decay.
        padding_idx: a row that is never changed.
        settings: ``betas`` and ``eps``.
    """

    def __init__(
        self,
        tables: Iterable[Tensor],
        others: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        table_weight_decay: float = 0.0,
        padding_idx: int = NO_PADDING,
        **settings: Any,
    ) -> None:
        self._tables = list(tables)
        groups: list[dict[str, Any]] = [
            {"params": self._tables, "weight_decay": table_weight_decay},
            {"params": list(others), "weight_decay": weight_decay},
        ]
        super().__init__(groups, lr=lr, fused=True, decoupled_weight_decay=True, **settings)
        self._padding_idx = padding_idx
        self._states: list[RowState] = []
        self._rows: Any = None  # the same for the kernels
        self._missed: MissedMoves | None = None  # None: every row is where dense Adam has it
        self._used: UsedRows | None = None

    @property
    def by_rows(self) -> bool:
        """Whether tables are treated row by row; a GPU passes over a whole table in no time."""
        return bool(self._tables) and self._tables[0].device.type == "cpu"

    @torch.no_grad()
    def use(self, ids_T: Tensor) -> UsedRows:
        """Brings the rows of a batch up to date; to be called before they are read.

        Args:
            ids_T: int64, every token of the batch, in the order in which the backward pass will give gradients.
        """
        self._make_room(len(ids_T))
        groups = self._kernels.group(ids_T, len(self._tables[0]), self._padding_idx)
        if self._missed is not None:
            self._kernels.catch_up(self._rows, groups.rows_R, self._missed, self.param_groups[0]["eps"])
        self._used = UsedRows(groups, [state.gradient_TX[: len(ids_T)] for state in self._states])
        return self._used

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> None:
        """Scales all gradients so that their norm is at most this, as `torch.nn.utils.clip_grad_norm_` does."""
        dense = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self._used is None:
            norm = torch.nn.utils.get_total_norm(dense)
            torch._foreach_mul_(dense, (max_norm / (norm + 1e-6)).clamp(max=1))
            return
        whole = math.sqrt(self._kernels.squares(dense) + self._sum_of_squares(self._used))
        self._used.scale = min(1.0, max_norm / (whole + 1e-6))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves the used rows and the other parameters by one step, with the gradients that were clipped."""
        assert closure is None, "not built"
        used, self._used = self._used, None
        if used is None:
            # torch's fused steps write beyond the rows of tables that lie side by side
            self.param_groups[0]["fused"] = all(table.is_contiguous() for table in self._tables)
            super().step()
            return
        assert used.is_filled, "there was no backward pass"
        self._step_others(used.scale)
        if used.squares is None:
            self._sum_of_squares(used)
        group = self.param_groups[0]
        if self._missed is None:
            number = int(self.state[self._tables[0]]["step"])
            self._missed = MissedMoves(len(self._tables[0]), number, *group["betas"])
        self._kernels.step(self._rows, used.groups, self._missed, _rates(group, used.scale))

    @torch.no_grad()
    def catch_up(self) -> None:
        """Brings every row to where dense Adam would have it, its moments too; before tables or state are read."""
        missed, self._missed = self._missed, None
        if missed is None:
            return
        rows_R = missed.behind()
        self._kernels.catch_up(self._rows, rows_R[rows_R != self._padding_idx], missed, self.param_groups[0]["eps"])
        for table in self._tables:
            self.state[table]["step"].fill_(missed.step)
        decays = missed.decays(torch.arange(len(missed.row_V)))
        for state in self._states:
            for moment_VX, decay_V in zip((state.m_VX, state.v_VX), decays, strict=True):
                moment_VX.mul_(decay_V.to(moment_VX.dtype).unsqueeze(1))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `catch_up` and ``state_dict`` have left."""
        super().load_state_dict(state_dict)
        self._states, self._missed, self._used = [], None, None

    @property
    def _kernels(self) -> ModuleType:
        is_float = self._tables[0].dtype == torch.float32
        return compiled_adam if is_float and compiled.library() is not None else reference_adam

    def _step_others(self, scale: float) -> None:
        group = self.param_groups[1]
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        if self._kernels is reference_adam or any(p.dtype != torch.float32 for p in parameters):
            torch._foreach_mul_([p.grad for p in parameters], scale)
            super().step()
            return
        states = [self._state_of(parameter) for parameter in parameters]
        for state in states:
            state["step"] += 1
        by_number: dict[int, list[tuple[Tensor, Tensor, Tensor, Tensor]]] = {}  # heads of tasks have had their own
        for p, state in zip(parameters, states, strict=True):
            arrays = (p, state["exp_avg"], state["exp_avg_sq"], p.grad)
            by_number.setdefault(int(state["step"]), []).append(arrays)
        for number, arrays_of_number in by_number.items():
            compiled_adam.dense_step(arrays_of_number, number, group["betas"], _rates(group, scale))

    def _sum_of_squares(self, used: UsedRows) -> float:
        used.add_up()
        used.squares = self._kernels.sum_gradients(self._rows, used.groups)
        return used.squares

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            moments = {name: torch.zeros_like(parameter) for name in MOMENTS}
            state.update({"step": torch.zeros(()), **moments})
        return state

    def _make_room(self, num_tokens: int) -> None:
        """Sees to a gradient row per token in every table; the memory is kept from step to step."""
        if self._states and len(self._states[0].gradient_TX) >= num_tokens:
            return
        if not self._states:
            put_side_by_side(self._tables)
            put_side_by_side([self._state_of(table)[name] for table in self._tables for name in MOMENTS])
        size = max(num_tokens, 2 * len(self._states[0].gradient_TX) if self._states else 0)
        self._states = [
            RowState(table.detach(), state["exp_avg"], state["exp_avg_sq"], table.new_empty(size, table.shape[1]))
            for table, state in ((table, self.state[table]) for table in self._tables)
        ]
        self._rows = self._kernels.as_kernel_tables(self._states)


def _rates(group: dict[str, Any], scale: float) -> Rates:
    return Rates(group["lr"], group["weight_decay"], group["eps"], scale)
