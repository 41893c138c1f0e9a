"""Adam for embedding tables: a step only costs the rows in the batch, and the result equals dense Adam.

Dense Adam also moves the rows that a batch does not use, by their momentum. Torch's SparseAdam skips these moves, which
gives another result. Here they are deferred: before a row is used again, it gets the missed moves. See
`student.kernels.lazy_adam`.

Shapes: T tokens of a batch, P pairs of tokens, V rows, X numbers of a row.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.training.loop import TrainOptimizer
from student.encoders.encoder import Encoder
from student.encoders.products import NO_PADDING
from student.kernels import lazy_adam, native, native_training
from student.kernels.lazy_adam import LazyAdamTerms, Rates, RowState
from student.model.tables import put_side_by_side
from student.settings import Optimizer

# Tang et al. (2019) trained their students with AdaDelta and this decay.
RHO = 0.95
# These are torch's own names, so that checkpoints fit `torch.optim.AdamW`.
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class UsedRows:
    """The rows that a batch uses, and the buffers for the gradients of its tokens.

    Attributes:
        groups: the batch's tokens by row.
        gradients: [T, X] per table, written by the backward pass.
        is_filled: whether they were written.
        more: the gradients of further readings of the same tokens.
        squares: the sum of the squares of the rows' gradients, after they were added up.
        bigrams: the rows and buffers of the table of bigrams.
    """

    groups: Any
    gradients: list[Tensor]
    is_filled: bool = False
    more: list[list[Tensor]] = field(default_factory=list)
    squares: float | None = None
    bigrams: "UsedRows | None" = None

    def buffers(self) -> list[Tensor]:
        """Returns the buffers for a backward pass. A batch may have several passes."""
        # The first reading uses the preallocated memory. A second one, as of layers, must not overwrite it.
        if not self.is_filled:
            self.is_filled = True
            return self.gradients
        self.more.append([torch.empty_like(gradient_TX) for gradient_TX in self.gradients])
        return self.more[-1]


class TableRows:
    """Tables that are used with the same ids.

    Args:
        tables: with a row for each id.
        padding_idx: a row that is never changed.
        state_of: returns the optimizer's state of a table.
    """

    def __init__(
        self, tables: Iterable[Tensor], padding_idx: int, state_of: Callable[[Tensor], dict[str, Tensor]]
    ) -> None:
        self.tables = list(tables)
        self._padding_idx, self._state_of = padding_idx, state_of
        self._states: list[RowState] = []
        # The kernels' own form of the states contains addresses, so it is rebuilt with the states.
        self._rows: Any = None
        # Without terms, every row is where dense Adam would have it.
        self._lazy: LazyAdamTerms | None = None

    def use(self, ids_T: Tensor, eps: float) -> UsedRows:
        """Brings the rows of a batch up to date."""
        # Buffers grow before rows are grouped, because growing replaces the states that kernels point to.
        self._make_room(len(ids_T))
        groups = self.kernels.group(ids_T, len(self.tables[0]), self._padding_idx)
        # A row must be current before the forward pass reads it, otherwise its gradient belongs to old values.
        if self._lazy is not None:
            self.kernels.catch_up(self._rows, groups.rows_R, self._lazy, eps)
        return UsedRows(groups, [state.gradient_TX[: len(ids_T)] for state in self._states])

    def sum_of_squares(self, used: UsedRows) -> float:
        """Adds up the gradients of each row's tokens. Returns the sum of their squares."""
        # Clipping needs the sum before the step does, and adding up twice would double the gradients.
        if used.squares is None:
            # Gradients add up per token, so later readings can be merged before tokens are grouped by row.
            for gradients in used.more:
                torch._foreach_add_(used.gradients, gradients)
            used.more.clear()
            used.squares = self.kernels.sum_gradients(self._rows, used.groups)
        return used.squares

    def step(self, used: UsedRows, rates: Rates, betas: tuple[float, float]) -> None:
        """Moves the used rows by one step, with the gradients of their tokens."""
        assert used.is_filled, "there was no backward pass"
        self.sum_of_squares(used)
        if self._lazy is None:
            # After a checkpoint all rows are current, so the terms can start at the stored step.
            number = int(self._state_of(self.tables[0])["step"])
            self._lazy = LazyAdamTerms(len(self.tables[0]), number, *betas)
        self.kernels.step(self._rows, used.groups, self._lazy, rates)

    def catch_up(self, eps: float) -> None:
        """Brings every row to its value under dense Adam."""
        # Afterwards nothing is deferred, so the sums of past steps can be dropped.
        lazy, self._lazy = self._lazy, None
        if lazy is None:
            return
        # The padding row never takes part in a step, so it must not decay either.
        rows_R = lazy.rows_behind()
        self.kernels.catch_up(self._rows, rows_R[rows_R != self._padding_idx], lazy, eps)
        for table in self.tables:
            self._state_of(table)["step"].fill_(lazy.step)
        # Dense Adam's moments decay at every step, so those in a checkpoint must have done so.
        decays = lazy.moment_decays(torch.arange(len(lazy.value_step_V)))
        for state in self._states:
            for moment_VX, decay_V in zip((state.m_VX, state.v_VX), decays, strict=True):
                moment_VX.mul_(decay_V.to(moment_VX.dtype).unsqueeze(1))

    def forget(self) -> None:
        """Resets to another state."""
        self._states, self._lazy = [], None

    @property
    def kernels(self) -> ModuleType:
        """Returns the kernels for these tables: compiled, or plain torch."""
        is_float = self.tables[0].dtype == torch.float32
        return native_training if is_float and native.library() is not None else lazy_adam

    def _make_room(self, num_tokens: int) -> None:
        """Ensures a gradient row per token for every table. The memory is reused from step to step."""
        if self._states and len(self._states[0].gradient_TX) >= num_tokens:
            return
        if not self._states:
            # A token's vector and matrices are then one stretch of memory, which is fetched faster than scattered rows.
            put_side_by_side(self.tables)
            put_side_by_side([self._state_of(table)[name] for table in self.tables for name in MOMENTS])
        # Doubling keeps the number of reallocations small when batches grow.
        size = max(num_tokens, 2 * len(self._states[0].gradient_TX) if self._states else 0)
        self._states = [
            RowState(table.detach(), state["exp_avg"], state["exp_avg_sq"], table.new_empty(size, table.shape[1]))
            for table, state in ((table, self._state_of(table)) for table in self.tables)
        ]
        self._rows = self.kernels.as_kernel_tables(self._states)


class RowAdam(torch.optim.Adam):
    """`torch.optim.AdamW` for tables of which a batch uses a few rows, and other parameters, with the same state.

    A step: `use` the ids, compute the loss from what it returns, then backward, `clip_gradients`, `step`. Tables with a
    dense gradient are treated as usual.

    Args:
        tables: tables with a row per id, which are all used with the same ids.
        others: the other parameters.
        lr: the learning rate, which may change from step to step.
        weight_decay: decoupled decay of the other parameters.
        table_weight_decay: decay of the tables, for every row at every step, except for the padding.
        padding_idx: a row that is never changed.
        bigrams: a table of pairs of tokens, which has its own ids.
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
        # The fused step is torch's fastest for whole tables, which a GPU uses.
        super().__init__(groups, lr=lr, fused=True, decoupled_weight_decay=True, **settings)
        self._used: list[UsedRows] = []
        # Clipping only records this factor. The step multiplies by it while it reads the gradients anyway.
        self._scale = 1.0

    @property
    def by_rows(self) -> bool:
        """Whether tables are treated row by row. A GPU is fast enough for whole tables."""
        return bool(self._tables) and self._tables[0].device.type == "cpu"

    @torch.no_grad()
    def use(self, ids_T: Tensor, bigrams_P: Tensor | None = None) -> UsedRows:
        """Brings the rows of a batch up to date. Must be called before they are read.

        Args:
            ids_T: int64, every token of the batch, in the order of the gradients of the backward pass.
            bigrams_P: int64, the rows of the batch's pairs of tokens.
        """
        assert self.by_rows, "the kernels would take a GPU's addresses for the CPU's"
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
        # The norm covers dense and sparse gradients together, as `clip_grad_norm_` of whole tables would.
        squares = [part.sum_of_squares(used) for part, used in zip(self._parts, self._used, strict=True)]
        whole = math.sqrt(self._parts[0].kernels.squares(dense) + sum(squares))
        self._scale = min(1.0, max_norm / (whole + 1e-6))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves the used rows and the other parameters by one step, with the gradients that were clipped."""
        assert closure is None, "not built"
        # Rows belong to one step. Keeping them would apply the same gradients again.
        used_rows, self._used = self._used, []
        if not used_rows:
            # Torch's fused step ignores strides and would overwrite the table beside the one it updates.
            self.param_groups[0]["fused"] = all(table.is_contiguous() for table in self._tables)
            super().step()
            return
        self._step_others(self._scale)
        group = self.param_groups[0]
        for part, used in zip(self._parts, used_rows, strict=True):
            part.step(used, _rates(group, self._scale), group["betas"])

    @torch.no_grad()
    def catch_up(self) -> None:
        """Brings every row and its moments to their values under dense Adam. Called before tables or state are read."""
        for part in self._parts:
            part.catch_up(self.param_groups[0]["eps"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that was saved with ``state_dict`` after `catch_up`."""
        # The new state has other tensors, so the kernels' addresses and deferred updates are discarded.
        super().load_state_dict(state_dict)
        self._used = []
        for part in self._parts:
            part.forget()

    def _step_others(self, scale: float) -> None:
        group = self.param_groups[1]
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        # The compiled dense step supports float32 only.
        if self._parts[0].kernels is lazy_adam or any(p.dtype != torch.float32 for p in parameters):
            torch._foreach_mul_([p.grad for p in parameters], scale)
            super().step()
            return
        states = [self._state_of(parameter) for parameter in parameters]
        for state in states:
            state["step"] += 1
        # With several tasks, a head takes steps only in its own batches, so parameters differ in their step number.
        by_number: dict[int, list[tuple[Tensor, Tensor, Tensor, Tensor]]] = {}
        for p, state in zip(parameters, states, strict=True):
            arrays = (p, state["exp_avg"], state["exp_avg_sq"], p.grad)
            by_number.setdefault(int(state["step"]), []).append(arrays)
        for number, arrays_of_number in by_number.items():
            native_training.dense_step(arrays_of_number, number, group["betas"], _rates(group, scale))

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        # Torch creates its state at the first dense step, which tables treated by rows never take.
        if not state:
            moments = {name: torch.zeros_like(parameter) for name in MOMENTS}
            state.update({"step": torch.zeros(()), **moments})
        return state


def _rates(group: dict[str, Any], scale: float) -> Rates:
    return Rates(group["lr"], group["weight_decay"], group["eps"], scale)


class RowOptimizer(TrainOptimizer):
    """Moves the rows of tables that a batch uses, and other parameters, by `RowAdam`."""

    inner: RowAdam

    @property
    def by_rows(self) -> bool:
        return self.inner.by_rows

    def clip(self, max_norm: float) -> None:
        self.inner.clip_gradients(max_norm)

    def catch_up(self) -> None:
        self.inner.catch_up()


def make_optimizer(settings: Optimizer, encoder: Encoder, *parts: nn.Module) -> TrainOptimizer:
    """Returns the optimizer of an encoder and other parts. Adam updates the tables row by row."""
    tables = [table.weight for table in encoder.trained_tables()]
    others = [*encoder.other_parameters(), *(parameter for part in parts for parameter in part.parameters())]
    # Heads may share a layer, which has moments once.
    others = list(dict.fromkeys(others))
    # Frozen parts, such as a teacher's filters, never get gradients and need no moments.
    others = [parameter for parameter in others if parameter.requires_grad]
    table = encoder.bigram_table()
    bigrams = None if table is None else table.weight
    # AdaDelta has no lazy form here, so whole tables get dense gradients.
    if settings.optimizer == "adadelta":
        parameters = [*tables, *others, *([] if bigrams is None else [bigrams])]
        return TrainOptimizer(torch.optim.Adadelta(parameters, lr=settings.rate, rho=RHO), settings.max_grad_norm)
    if settings.optimizer != "adam":
        raise ValueError(f"unknown optimizer {settings.optimizer!r}")
    adam = RowAdam(tables, others, lr=settings.rate, padding_idx=encoder.pad_id, bigrams=bigrams)
    return RowOptimizer(adam, settings.max_grad_norm)


def rows_of_batch(
    optimizer: TrainOptimizer | None, encoder: Encoder, ids_T: torch.Tensor, starts_S: torch.Tensor | None = None
) -> UsedRows | None:
    """Returns the receiver of the gradients of the embedding rows in a batch, or None for dense gradients."""
    # A GPU reads whole tables faster than it groups tokens.
    if not isinstance(optimizer, RowOptimizer) or not optimizer.by_rows:
        return None
    return optimizer.inner.use(ids_T, None if starts_S is None else encoder.bigram_rows(ids_T, starts_S))
