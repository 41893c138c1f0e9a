"""Rows of a table, whose gradients may be taken row by row instead of for the whole table.

Shapes: T tokens, V vocabulary, X numbers of a row.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from student.model.products import GradientTaker


def rows_of(weight_VX: Tensor, ids_T: Tensor, padding_idx: int, rows: GradientTaker | None = None) -> Tensor:
    """The rows of these ids, float32 [T, X].

    Args:
        weight_VX: the table; with ``rows`` the only one whose gradients they take.
        ids_T: int64.
        padding_idx: a row that gets no gradient; negative for none.
        rows: takes the gradients, see `student.train.optimizer.RowAdam.use`.
    """
    if rows is None:
        return functional.embedding(ids_T, weight_VX, padding_idx if padding_idx >= 0 else None)
    return _TakenRows.apply(rows, ids_T, weight_VX)  # type: ignore[no-any-return, no-untyped-call]


class _TakenRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: GradientTaker, ids_T: Tensor, weight_VX: Tensor) -> Tensor:
        ctx.rows = rows
        return functional.embedding(ids_T, weight_VX)

    @staticmethod
    def backward(ctx: Any, grad_TX: Tensor) -> tuple[None, None, None]:
        (buffer_TX,) = ctx.rows.buffers()
        buffer_TX.copy_(grad_TX)
        return None, None, None
