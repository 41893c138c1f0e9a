"""C++ code for element-wise recurrences: the states of all sentences, and their pooling (``cpp/recur.cpp``).

`student.encoders.recurrent` computes the same in plain torch on padded arrays. Everything is float32 on a CPU.

Shapes: T tokens of all sentences end to end, N sentences, S = N + 1 starts, H numbers of a state, D = 2 H of both ways.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from student.kernels.native import check_rows, check_tensor, kernels, pointer, threads_for


class _Steps(ctypes.Structure):
    """The order of fields must match the structure in ``cpp/recur.cpp``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gates", "values", "starts")),
        *((name, ctypes.c_int64) for name in ("sentences", "size", "threads")),
    )


def recur(gates_TD: Tensor, values_TD: Tensor, starts_S: Tensor) -> Tensor:
    """Returns the last state, the maxima and the minima of all states, of the way there and of the way back.

    A state is h_t = g_t * h_(t-1) + v_t, with h_0 = 0. The way back reads a sentence from its end, and its gates and
    values are the second halves of D. All results are 0 for an empty sentence.

    Args:
        gates_TD: g, float32.
        values_TD: v, float32.
        starts_S: int64.

    Returns: pooled_NF, F = 6 H. Of equal states, the last one that is read gets the gradient of a maximum or minimum.
        (In plain torch, it is the first one of the text.)

    Raises:
        ValueError: starts do not ascend from 0 to T, or a tensor has a wrong type or shape.
    """
    return _Recur.apply(gates_TD, values_TD, starts_S)  # type: ignore[no-any-return, no-untyped-call]


class _Recur(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates_TD: Tensor, values_TD: Tensor, starts_S: Tensor) -> Tensor:
        gates_TD, values_TD = gates_TD.contiguous(), values_TD.contiguous()
        check_tensor("gates", gates_TD, torch.float32, dimensions=2)
        num_tokens, width = gates_TD.shape
        # Both ways share a row, so an odd width would make the second one read the next token.
        if values_TD.shape != gates_TD.shape or width % 2:
            raise ValueError(f"gates have the shape {tuple(gates_TD.shape)}, values {tuple(values_TD.shape)}")
        num_sentences = check_rows(values_TD, starts_S)
        ctx.settings = num_sentences, width // 2, threads_for(num_tokens)
        steps = _Steps(*map(pointer, (gates_TD, values_TD, starts_S)), *ctx.settings)
        states_TD, pooled_NF = torch.empty_like(gates_TD), gates_TD.new_empty(num_sentences, 3 * width)
        kernels().recur(ctypes.byref(steps), pointer(states_TD), pointer(pooled_NF))
        ctx.save_for_backward(gates_TD, starts_S, states_TD, pooled_NF)
        return pooled_NF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        gates_TD, starts_S, states_TD, pooled_NF = ctx.saved_tensors
        grad_NF, grads = grad_NF.contiguous(), (torch.empty_like(gates_TD), torch.empty_like(gates_TD))
        # Gradients depend on states and gates, and not on values.
        steps = _Steps(pointer(gates_TD), None, pointer(starts_S), *ctx.settings)
        kernels().recur_backward(ctypes.byref(steps), *map(pointer, (states_TD, pooled_NF, grad_NF, *grads)))
        return *grads, None
