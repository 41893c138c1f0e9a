"""Adam for embedding tables: the work of a step is that of the rows in the batch, the result that of dense Adam.

Dense Adam also moves the rows that a batch does not use, by their momentum. Those moves are not skipped here (torch's
SparseAdam skips them, and ends elsewhere) but deferred: before a row is used again it makes up for what it has missed,
see `student.kernels.lazy_adam`.

Shapes: T tokens of a batch, P pairs of tokens.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from student.kernels import compiled_training, lazy_adam
from student.kernels.lazy_adam import Rates
from student.model.products import NO_PADDING
from student.train.table_rows import MOMENTS, TableRows, UsedRows


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
        bigrams: a table of pairs of tokens, used with ids of its own.
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
        bigrams: Tensor | None = None,
        **settings: Any,
    ) -> None:
        of_tokens = TableRows(tables, padding_idx, self._state_of)
        self._parts = [of_tokens] if bigrams is None else [of_tokens, TableRows([bigrams], NO_PADDING, self._state_of)]
        self._tables = [table for part in self._parts for table in part.tables]
        groups: list[dict[str, Any]] = [
            {"params": self._tables, "weight_decay": table_weight_decay},
            {"params": list(others), "weight_decay": weight_decay},
        ]
        super().__init__(groups, lr=lr, fused=True, decoupled_weight_decay=True, **settings)
        self._used: list[UsedRows] = []
        self._scale = 1.0  # what the gradients of used rows are to be multiplied by

    @property
    def by_rows(self) -> bool:
        """Whether tables are treated row by row; a GPU passes over a whole table in no time."""
        return bool(self._tables) and self._tables[0].device.type == "cpu"

    @torch.no_grad()
    def use(self, ids_T: Tensor, bigrams_P: Tensor | None = None) -> UsedRows:
        """Brings the rows of a batch up to date; to be called before they are read.

        Args:
            ids_T: int64, every token of the batch, in the order in which the backward pass will give gradients.
            bigrams_P: likewise the rows of its pairs of tokens.
        """
        ids = [part for part in (ids_T, bigrams_P) if part is not None]
        eps = self.param_groups[0]["eps"]
        self._used = [part.use(of_part, eps) for part, of_part in zip(self._parts, ids, strict=True)]
        self._scale = 1.0
        used, *bigrams = self._used
        used.bigrams = next(iter(bigrams), None)
        return used

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> None:
        """Scales all gradients so that their norm is at most this, as `torch.nn.utils.clip_grad_norm_` does."""
        dense = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not self._used:
            norm = torch.nn.utils.get_total_norm(dense)
            torch._foreach_mul_(dense, (max_norm / (norm + 1e-6)).clamp(max=1))
            return
        squares = [part.sum_of_squares(used) for part, used in zip(self._parts, self._used, strict=True)]
        whole = math.sqrt(self._parts[0].kernels.squares(dense) + sum(squares))
        self._scale = min(1.0, max_norm / (whole + 1e-6))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves the used rows and the other parameters by one step, with the gradients that were clipped."""
        assert closure is None, "not built"
        used_rows, self._used = self._used, []
        if not used_rows:
            # torch's fused steps write beyond the rows of tables that lie side by side
            self.param_groups[0]["fused"] = all(table.is_contiguous() for table in self._tables)
            super().step()
            return
        self._step_others(self._scale)
        group = self.param_groups[0]
        for part, used in zip(self._parts, used_rows, strict=True):
            part.step(used, _rates(group, self._scale), group["betas"])

    @torch.no_grad()
    def catch_up(self) -> None:
        """Brings every row to where dense Adam would have it, its moments too; before tables or state are read."""
        for part in self._parts:
            part.catch_up(self.param_groups[0]["eps"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `catch_up` and ``state_dict`` have left."""
        super().load_state_dict(state_dict)
        self._used = []
        for part in self._parts:
            part.forget()

    def _step_others(self, scale: float) -> None:
        group = self.param_groups[1]
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        if self._parts[0].kernels is lazy_adam or any(p.dtype != torch.float32 for p in parameters):
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
            compiled_training.dense_step(arrays_of_number, number, group["betas"], _rates(group, scale))

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            moments = {name: torch.zeros_like(parameter) for name in MOMENTS}
            state.update({"step": torch.zeros(()), **moments})
        return state


def _rates(group: dict[str, Any], scale: float) -> Rates:
    return Rates(group["lr"], group["weight_decay"], group["eps"], scale)
