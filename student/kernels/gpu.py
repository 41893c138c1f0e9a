"""The student's ordered products on the GPU: a Triton kernel for each of the four functions, straight from the tables.

Shapes: T tokens, N sequences, S = N + 1 starts, V rows of a table, E numbers of a vector, D side of a matrix, F = D * D
its numbers (in `reduce` N by F: all the features of a sequence), P features of a token.

Without maxima nothing waits for the GPU, and the shapes of the results follow from those of the arguments: all four can
be captured in a CUDA graph. Products are float32, multiplied and added as such (no tf32), one program per sequence and
direction.
"""

import torch

from student.kernels import gpu_maxima, gpu_reduce
from student.kernels.gpu_scan import scan, scan_backward
from student.kernels.reference import Tables

__all__ = ["reduce", "reduce_backward", "scan", "scan_backward"]


def reduce(tables: Tables, ids_T: torch.Tensor, starts_S: torch.Tensor, with_max: bool = False) -> torch.Tensor:
    """`gpu_reduce.reduce`; if wanted, with the maxima of the vectors beside their sums, which are plain torch's."""
    if with_max:
        return gpu_maxima.reduce(gpu_reduce.reduce, tables, ids_T, starts_S)
    return gpu_reduce.reduce(tables, ids_T, starts_S)


def reduce_backward(
    tables: Tables, ids_T: torch.Tensor, starts_S: torch.Tensor, grad_NF: torch.Tensor, with_max: bool = False
) -> tuple[torch.Tensor | None, ...]:
    """The gradient of `reduce`, see `gpu_reduce.reduce_backward`."""
    if with_max:
        return gpu_maxima.reduce_backward(gpu_reduce.reduce_backward, tables, ids_T, starts_S, grad_NF)
    return gpu_reduce.reduce_backward(tables, ids_T, starts_S, grad_NF)
