"""A token's features and their gradient on the GPU; shapes as in `student.kernels.gpu`."""

import torch
import triton
from triton import language as tl

from student.kernels.gpu_rows import VECTOR_BLOCK, Sizes, identity, load_row, multiply, row_gradients, square
from student.kernels.reference import Tables


def scan(tables: Tables, ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
    """[v_1 + … + v_t ; X_1 … X_t] of each token and, with a backward table, [v_t + … + v_L ; Y_L … Y_t] after it.

    Args:
        tables: as for `reduce`, as are the others.
        ids_T: all sequences.
        starts_S: where they start.

    Returns:
        features_TP, float32.
    """
    sizes = Sizes.of(tables)
    vectors, forward, backward = tables
    width = (sizes.E if vectors is not None else 0) * (2 if backward is not None else 1)
    width += sum(table.shape[1] for table in (forward, backward) if table is not None)
    features_TP = ids_T.new_empty(len(ids_T), width, dtype=torch.float32)
    grid = sizes.grid(len(starts_S) - 1)
    _scan[grid](tables, ids_T, starts_S, features_TP, width, *sizes, **sizes.options)
    return features_TP


def scan_backward(
    tables: Tables,
    ids_T: torch.Tensor,
    starts_S: torch.Tensor,
    features_TP: torch.Tensor,
    grad_TP: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of `scan`, as `reduce_backward` gives it.

    The gradient of P_t = X_1 … X_t is G_t = its own row of grad_TP + G_(t+1) X_(t+1)^T, and that of X_t is
    P_(t-1)^T G_t. The products P are in the features.

    Args:
        tables: as for `scan`.
        ids_T: as for `scan`.
        starts_S: as for `scan`.
        features_TP: what `scan` returned.
        grad_TP: their gradient.
    """
    sizes = Sizes.of(tables)
    gradients = row_gradients(tables, len(ids_T))
    grid = sizes.grid(len(starts_S) - 1)
    assert features_TP.is_contiguous()
    _scan_backward[grid](
        tables,
        gradients,
        ids_T,
        starts_S,
        features_TP,
        grad_TP.contiguous(),
        features_TP.shape[1],
        *sizes,
        **sizes.options,
    )
    return gradients


@triton.jit
def _scan(tables, ids, starts, features, width, E: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    vectors, forward, backward = tables
    sequence, part = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    if part == 0:
        if forward is not None:
            _products(forward, ids, start, 1, stop - start, features + E, width, D, BLOCK_D)
    elif part == 1:
        if backward is not None:
            at = features + width - D * D
            _products(backward, ids, stop - 1, -1, stop - start, at, width, D, BLOCK_D)
    elif vectors is not None:
        _vector_sums(vectors, ids, start, 1, stop - start, features, width, part - 2, E)
        if backward is not None:
            at = features + width - D * D - E
            _vector_sums(vectors, ids, stop - 1, -1, stop - start, at, width, part - 2, E)


@triton.jit
def _products(table, ids, first, step, count, result, width, D: tl.constexpr, BLOCK_D: tl.constexpr):
    places, inside = square(D, BLOCK_D)
    product = identity(BLOCK_D)
    for position in tl.range(count, num_stages=3):
        token = first + step * position
        product = multiply(product, load_row(table, ids, token, places, inside, D * D))
        tl.store(result + token * width + places, product, mask=inside)


@triton.jit
def _vector_sums(table, ids, first, step, count, result, width, piece, E: tl.constexpr):
    column = piece * VECTOR_BLOCK + tl.arange(0, VECTOR_BLOCK)
    total = tl.zeros((VECTOR_BLOCK,), tl.float32)
    for position in tl.range(count, num_stages=3):
        token = first + step * position
        total += load_row(table, ids, token, column, column < E, E)
        tl.store(result + token * width + column, total, mask=column < E)


@triton.jit
def _scan_backward(
    tables, gradients, ids, starts, features, grad, width, E: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    vectors, forward, backward = tables
    grad_vectors, grad_forward, grad_backward = gradients
    sequence, part = tl.program_id(0), tl.program_id(1)
    start, stop = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    last = width - D * D  # where the backward product begins
    if part == 0:
        if forward is not None:
            _products_backward(
                forward, grad_forward, ids, start, 1, stop - start, features + E, grad + E, width, D, BLOCK_D
            )
    elif part == 1:
        if backward is not None:
            _products_backward(
                backward,
                grad_backward,
                ids,
                stop - 1,
                -1,
                stop - start,
                features + last,
                grad + last,
                width,
                D,
                BLOCK_D,
            )
    elif vectors is not None:
        column = (part - 2) * VECTOR_BLOCK + tl.arange(0, VECTOR_BLOCK)
        _sums_backward(grad_vectors, stop - 1, -1, stop - start, grad, width, column, E, False)
        if backward is not None:
            tl.debug_barrier()  # other threads may have stored what is read again
            _sums_backward(grad_vectors, start, 1, stop - start, grad + last - E, width, column, E, True)


@triton.jit
def _products_backward(
    table, grad_table, ids, first, step, count, features, grad, width, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    places, inside = square(D, BLOCK_D)
    gradient = tl.zeros((BLOCK_D, BLOCK_D), tl.float32)
    for back in tl.range(count, num_stages=3):
        token = first + step * (count - 1 - back)
        gradient += tl.load(grad + token * width + places, mask=inside, other=0.0)
        size = tl.where(token == first, 0, D * D)  # there is nothing before the first
        before = tl.load(
            features + (token - step) * width + places, mask=inside & (places < size), other=identity(BLOCK_D)
        )
        tl.store(grad_table + token * D * D + places, multiply(tl.trans(before), gradient), mask=inside)
        gradient = multiply(gradient, tl.trans(load_row(table, ids, token, places, inside, D * D)))


@triton.jit
def _sums_backward(grad_table, first, step, count, grad, width, column, E: tl.constexpr, ADD: tl.constexpr):
    total = tl.zeros(column.shape, tl.float32)
    for position in range(count):
        token = first + step * position
        total += tl.load(grad + token * width + column, mask=column < E)
        place = grad_table + token * E + column
        tl.store(place, total + tl.load(place, mask=column < E) if ADD else total, mask=column < E)
