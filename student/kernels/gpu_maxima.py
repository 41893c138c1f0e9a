"""The maxima of vectors in plain torch, put beside what kernels make that have none; shapes as in `reference`.

Unlike those kernels it waits for the GPU, to learn how long the longest sequence is.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from student.kernels.reference import Tables, maxima


def reduce(kernel: Callable[..., Tensor], tables: Tables, ids_T: Tensor, starts_S: Tensor) -> Tensor:
    """Returns features_NF as `reference.reduce` does with maxima, by a ``kernel`` that does the same without."""
    vectors_VE, features_NF = tables[0], kernel(tables, ids_T, starts_S)
    if vectors_VE is None:
        return features_NF
    sums_NE, products_NX = features_NF.tensor_split([vectors_VE.shape[1]], dim=1)
    return torch.cat([sums_NE, maxima(vectors_VE, ids_T, starts_S), products_NX], dim=1)


def reduce_backward(
    kernel: Callable[..., tuple[Tensor | None, ...]], tables: Tables, ids_T: Tensor, starts_S: Tensor, grad_NF: Tensor
) -> tuple[Tensor | None, ...]:
    """Returns the gradients of `reduce` for each token's rows, by the ``kernel`` of those without maxima."""
    vectors_VE = tables[0]
    if vectors_VE is None:
        return kernel(tables, ids_T, starts_S, grad_NF)
    size = vectors_VE.shape[1]
    sums_NE, maxima_NE, products_NX = grad_NF.tensor_split([size, 2 * size], dim=1)
    grad_TE, *others = kernel(tables, ids_T, starts_S, torch.cat([sums_NE, products_NX], dim=1))
    assert grad_TE is not None, "there are vectors"
    with torch.enable_grad():
        rows_TE = vectors_VE.detach()[ids_T].requires_grad_()
        largest_NE = maxima(rows_TE, torch.arange(len(ids_T), device=ids_T.device), starts_S)
    (largest_TE,) = torch.autograd.grad(largest_NE, rows_TE, maxima_NE)
    return grad_TE + largest_TE, *others
