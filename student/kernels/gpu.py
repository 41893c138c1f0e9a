"""The student's ordered products on the GPU: a Triton kernel for each of the four functions, straight from the tables.

Shapes: T tokens, N sequences, S = N + 1 starts, V rows of a table, E numbers of a vector, D side of a matrix, F = D * D
its numbers (in `reduce` N by F: all the features of a sequence), P features of a token.

Nothing waits for the GPU, and the shapes of the results follow from those of the arguments: all four can be captured in
a CUDA graph. Products are float32, multiplied and added as such (no tf32), one program per sequence and direction.
"""

from student.kernels.gpu_reduce import reduce, reduce_backward
from student.kernels.gpu_scan import scan, scan_backward

__all__ = ["reduce", "reduce_backward", "scan", "scan_backward"]
