"""Tables of which a batch uses a few rows, the same of each: what it uses, and what the others have missed.

Shapes: T tokens of a batch, V rows, X numbers of a row.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from student.kernels import compiled, compiled_training, lazy_adam
from student.kernels.lazy_adam import LazyAdamTerms, Rates, RowState
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
        bigrams: those of the table of pairs of tokens.
    """

    groups: Any
    gradients: list[Tensor]
    is_filled: bool = False
    more: list[list[Tensor]] = field(default_factory=list)
    squares: float | None = None
    bigrams: "UsedRows | None" = None

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


class TableRows:
    """Tables that are used with the same ids.

    Args:
        tables: with a row for each id.
        padding_idx: a row that is never changed.
        state_of: gives the optimizer's state of a table.
    """

    def __init__(
        self, tables: Iterable[Tensor], padding_idx: int, state_of: Callable[[Tensor], dict[str, Tensor]]
    ) -> None:
        self.tables = list(tables)
        self._padding_idx, self._state_of = padding_idx, state_of
        self._states: list[RowState] = []
        self._rows: Any = None  # the same for the kernels
        self._lazy: LazyAdamTerms | None = None  # None: every row is where dense Adam has it

    def use(self, ids_T: Tensor, eps: float) -> UsedRows:
        """Brings the rows of a batch up to date, see `RowAdam.use`."""
        self._make_room(len(ids_T))
        groups = self.kernels.group(ids_T, len(self.tables[0]), self._padding_idx)
        if self._lazy is not None:
            self.kernels.catch_up(self._rows, groups.rows_R, self._lazy, eps)
        return UsedRows(groups, [state.gradient_TX[: len(ids_T)] for state in self._states])

    def sum_of_squares(self, used: UsedRows) -> float:
        """Adds up the gradients of each row's tokens; returns the sum of their squares."""
        if used.squares is None:
            used.add_up()
            used.squares = self.kernels.sum_gradients(self._rows, used.groups)
        return used.squares

    def step(self, used: UsedRows, rates: Rates, betas: tuple[float, float]) -> None:
        """Moves the used rows by one step, with the gradients of their tokens."""
        assert used.is_filled, "there was no backward pass"
        self.sum_of_squares(used)
        if self._lazy is None:
            number = int(self._state_of(self.tables[0])["step"])
            self._lazy = LazyAdamTerms(len(self.tables[0]), number, *betas)
        self.kernels.step(self._rows, used.groups, self._lazy, rates)

    def catch_up(self, eps: float) -> None:
        """Brings every row to where dense Adam would have it, see `RowAdam.catch_up`."""
        lazy, self._lazy = self._lazy, None
        if lazy is None:
            return
        rows_R = lazy.rows_behind()
        self.kernels.catch_up(self._rows, rows_R[rows_R != self._padding_idx], lazy, eps)
        for table in self.tables:
            self._state_of(table)["step"].fill_(lazy.step)
        decays = lazy.moment_decays(torch.arange(len(lazy.value_step_V)))
        for state in self._states:
            for moment_VX, decay_V in zip((state.m_VX, state.v_VX), decays, strict=True):
                moment_VX.mul_(decay_V.to(moment_VX.dtype).unsqueeze(1))

    def forget(self) -> None:
        """Begins anew, with another state."""
        self._states, self._lazy = [], None

    @property
    def kernels(self) -> ModuleType:
        """What does the work."""
        is_float = self.tables[0].dtype == torch.float32
        return compiled_training if is_float and compiled.library() is not None else lazy_adam

    def _make_room(self, num_tokens: int) -> None:
        """Sees to a gradient row per token in every table; the memory is kept from step to step."""
        if self._states and len(self._states[0].gradient_TX) >= num_tokens:
            return
        if not self._states:
            put_side_by_side(self.tables)
            put_side_by_side([self._state_of(table)[name] for table in self.tables for name in MOMENTS])
        size = max(num_tokens, 2 * len(self._states[0].gradient_TX) if self._states else 0)
        self._states = [
            RowState(table.detach(), state["exp_avg"], state["exp_avg_sq"], table.new_empty(size, table.shape[1]))
            for table, state in ((table, self._state_of(table)) for table in self.tables)
        ]
        self._rows = self.kernels.as_kernel_tables(self._states)
