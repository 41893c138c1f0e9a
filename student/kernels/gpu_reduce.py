"""A sequence's features and their gradient on the GPU; shapes as in `student.kernels.gpu`."""

import torch
import triton
from triton import language as tl

from student.kernels.gpu_rows import VECTOR_BLOCK, Sizes, identity, load_row, multiply, row_gradients, square
from student.kernels.reference import Tables

TOKENS = tl.constexpr(8)  # whose vectors are read at once


def reduce(tables: Tables, ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
    """[sum of v_t ; X_1 X_2 … X_L ; Y_L … Y_2 Y_1] of each sequence, with the parts whose table is given.

    Args:
        tables: vectors_VE, forward_VF and backward_VF, float32.
        ids_T: int64, all sequences end to end.
        starts_S: int64, from 0 to T; sequence n is ``ids_T[starts_S[n]:starts_S[n + 1]]``.

    Returns:
        features_NF, float32; zeros and identities for an empty sequence.
    """
    sizes = Sizes.of(tables)
    width = sum(table.shape[1] for table in tables if table is not None)
    features_NF = ids_T.new_empty(len(starts_S) - 1, width, dtype=torch.float32)
    grid = sizes.grid(len(features_NF))
    _reduce[grid](tables, ids_T, starts_S, features_NF, width, *sizes, **sizes.options)
    return features_NF


def reduce_backward(
    tables: Tables, ids_T: torch.Tensor, starts_S: torch.Tensor, grad_NF: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of `reduce`: a row per token, not per row of the table.

    With P_t = X_1 … X_t and G_t the gradient of P_t, that of X_t is P_(t-1)^T G_t, and G_(t-1) is G_t X_t^T. The
    products P are worked out again, and wait in the rows that the gradients will have.

    Returns:
        grad_vectors_TE, grad_forward_TF and grad_backward_TF, float32; None where there is no table.
    """
    sizes = Sizes.of(tables)
    gradients = row_gradients(tables, len(ids_T))
    grid = sizes.grid(len(starts_S) - 1)
    grad_NF = grad_NF.contiguous()
    _reduce_backward[grid](tables, gradients, ids_T, starts_S, grad_NF, grad_NF.shape[1], *sizes, **sizes.options)
    return gradients


@triton.jit
def _reduce(tables, ids, starts, features, width, E: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    vectors, forward, backward = tables
    sequence, part = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    features += sequence.to(tl.int64) * width
    if part == 0:
        if forward is not None:
            _product(forward, ids, start, 1, stop - start, features + E, D, BLOCK_D)
    elif part == 1:
        if backward is not None:
            _product(backward, ids, stop - 1, -1, stop - start, features + width - D * D, D, BLOCK_D)
    elif vectors is not None:
        _vector_sum(vectors, ids, start, stop, features, part - 2, E)


@triton.jit
def _product(table, ids, first, step, count, result, D: tl.constexpr, BLOCK_D: tl.constexpr):
    places, inside = square(D, BLOCK_D)
    product = identity(BLOCK_D)
    for position in tl.range(count, num_stages=3):
        product = multiply(product, load_row(table, ids, first + step * position, places, inside, D * D))
    tl.store(result + places, product, mask=inside)


@triton.jit
def _vector_sum(table, ids, start, stop, result, piece, E: tl.constexpr):
    column = piece * VECTOR_BLOCK + tl.arange(0, VECTOR_BLOCK)
    total = tl.zeros((VECTOR_BLOCK,), tl.float32)
    for group in range(start, stop, TOKENS):
        token = group + tl.arange(0, TOKENS)
        row = tl.load(ids + token, mask=token < stop, other=0)
        inside = (token < stop)[:, None] & (column < E)[None, :]
        total += tl.sum(tl.load(table + row[:, None] * E + column[None, :], mask=inside, other=0.0), axis=0)
    tl.store(result + column, total, mask=column < E)


@triton.jit
def _reduce_backward(
    tables, gradients, ids, starts, grad, width, E: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    vectors, forward, backward = tables
    grad_vectors, grad_forward, grad_backward = gradients
    sequence, part = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    grad += sequence.to(tl.int64) * width
    if part == 0:
        if forward is not None:
            _product_backward(forward, grad_forward, ids, start, 1, stop - start, grad + E, D, BLOCK_D)
    elif part == 1:
        if backward is not None:
            at = grad + width - D * D
            _product_backward(backward, grad_backward, ids, stop - 1, -1, stop - start, at, D, BLOCK_D)
    elif vectors is not None:
        _vector_sum_backward(grad_vectors, start, stop, grad, part - 2, E)


@triton.jit
def _product_backward(table, grad_table, ids, first, step, count, grad, D: tl.constexpr, BLOCK_D: tl.constexpr):
    places, inside = square(D, BLOCK_D)
    product = identity(BLOCK_D)
    for position in tl.range(count, num_stages=3):
        token = first + step * position
        tl.store(grad_table + token * D * D + places, product, mask=inside)
        product = multiply(product, load_row(table, ids, token, places, inside, D * D))
    tl.debug_barrier()  # other threads read what these have stored
    gradient = tl.load(grad + places, mask=inside, other=0.0)
    for back in tl.range(count, num_stages=3):
        token = first + step * (count - 1 - back)
        before = tl.load(grad_table + token * D * D + places, mask=inside, other=0.0)
        tl.store(grad_table + token * D * D + places, multiply(tl.trans(before), gradient), mask=inside)
        gradient = multiply(gradient, tl.trans(load_row(table, ids, token, places, inside, D * D)))


@triton.jit
def _vector_sum_backward(grad_table, start, stop, grad, piece, E: tl.constexpr):
    column = piece * VECTOR_BLOCK + tl.arange(0, VECTOR_BLOCK)
    gradient = tl.load(grad + column, mask=column < E)
    for token in range(start, stop):
        tl.store(grad_table + token * E + column, gradient, mask=column < E)
