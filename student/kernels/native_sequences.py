"""C++ code over whole sentences: aligned pairs (``cpp/align.cpp``) and element-wise recurrences (``cpp/recur.cpp``).

`student.encoders.aligned` and `student.encoders.recurrent` compute the same in plain torch on padded arrays. Here
nothing is padded, and attention is computed again for the gradients instead of being kept. Everything is float32 on a
CPU.

Shapes: T tokens of all sentences end to end, N sentences, S = N + 1 starts, E numbers of a token's vector, D = 2 E of
its vector and its contextual vector side by side (or of a state's both ways), F inputs of a comparison or pooled
numbers, H numbers of a comparison or of a state.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from student.kernels.native import check_rows, check_tensor, kernels, pointer, threads_for


class _Pairs(ctypes.Structure):
    """The order of fields must match the structure in ``cpp/align.cpp``."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("sentences", "pairs", "size", "threads")),
        ("scale", ctypes.c_float),
    )


def align(rows_TD: Tensor, starts_S: Tensor, num_pairs: int, scale: float) -> Tensor:
    """Returns [z, c, z * c, |z - c|] for each token, from its contextual vector z.

    c is the mean of the contextual vectors of the other sentence, weighted by the softmax of ``scale`` times the dot
    products of the vectors. It is 0 if the other sentence is empty.

    Args:
        rows_TD: float32.
        starts_S: int64.
        num_pairs: N / 2 for first sentences that are followed by the second ones, or N for sentences beside
            themselves.
        scale: of the scores.

    Returns: inputs_TF.

    Raises:
        ValueError: starts do not ascend from 0 to T, there are other numbers of sentences, or a tensor has a wrong
            type or shape.
    """
    return _Align.apply(rows_TD, starts_S, num_pairs, scale)  # type: ignore[no-any-return, no-untyped-call]


def pool(compared_TH: Tensor, starts_S: Tensor) -> Tensor:
    """Returns the sums and the maxima of relu(compared_TH) in each sentence, [N, 2 H].

    Raises:
        ValueError: starts do not ascend from 0 to T, or a tensor has a wrong type or shape.
    """
    return _Pool.apply(compared_TH, starts_S)  # type: ignore[no-any-return, no-untyped-call]


class _Align(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_TD: Tensor, starts_S: Tensor, num_pairs: int, scale: float) -> Tensor:
        rows_TD = rows_TD.contiguous()
        num_sentences = check_rows(rows_TD, starts_S)
        # Threads share pairs, so a sentence in two pairs would be written by both, and one in none by nobody.
        if num_sentences not in (num_pairs, 2 * num_pairs):
            raise ValueError(f"{num_sentences} sentences are not {num_pairs} pairs")
        ctx.settings = num_sentences, num_pairs, rows_TD.shape[1] // 2, threads_for(len(rows_TD)), scale
        inputs_TF = rows_TD.new_empty(len(rows_TD), 2 * rows_TD.shape[1])
        pairs = _Pairs(pointer(rows_TD), pointer(starts_S), *ctx.settings)
        kernels().align(ctypes.byref(pairs), pointer(inputs_TF))
        ctx.save_for_backward(rows_TD, starts_S, inputs_TF)
        return inputs_TF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor | None, ...]:
        rows_TD, starts_S, inputs_TF = ctx.saved_tensors
        grad_TF, grad_TD = grad_TF.contiguous(), torch.zeros_like(rows_TD)
        pairs = _Pairs(pointer(rows_TD), pointer(starts_S), *ctx.settings)
        kernels().align_backward(ctypes.byref(pairs), *map(pointer, (inputs_TF, grad_TF, grad_TD)))
        return grad_TD, None, None, None


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compared_TH: Tensor, starts_S: Tensor) -> Tensor:
        compared_TH = compared_TH.contiguous()
        sizes = num_sentences, size = check_rows(compared_TH, starts_S), compared_TH.shape[1]
        pooled_NX = compared_TH.new_empty(num_sentences, 2 * size)
        kernels().pool(pointer(compared_TH), pointer(starts_S), *sizes, pointer(pooled_NX))
        ctx.save_for_backward(compared_TH, starts_S, pooled_NX)
        return pooled_NX

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NX: Tensor) -> tuple[Tensor | None, ...]:
        compared_TH, starts_S, pooled_NX = ctx.saved_tensors
        sizes = len(starts_S) - 1, compared_TH.shape[1]
        grad_NX, grad_TH = grad_NX.contiguous(), torch.empty_like(compared_TH)
        arrays = map(pointer, (pooled_NX, grad_NX, grad_TH))
        kernels().pool_backward(pointer(compared_TH), pointer(starts_S), *sizes, *arrays)
        return grad_TH, None


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
