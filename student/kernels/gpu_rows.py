"""What the kernels of `student.kernels.gpu` share: rows of tables as blocks, and how big a block is.

A block's sides are powers of two, as Triton wants them; what sticks out of a matrix is masked. Each kernel is started
for every sequence and every part of its features: part 0 is the forward product, part 1 the backward product, and from
2 on each is a piece of the vector sum. A part whose table is None ends at once.
"""

from typing import NamedTuple

import torch
import triton
from triton import language as tl

from student.kernels.reference import Tables

VECTOR_BLOCK = tl.constexpr(512)  # numbers of a vector that one program adds up
SMALLEST_SIDE = 16  # of blocks that are multiplied


class Sizes(NamedTuple):
    """What a kernel is compiled for, under the names of its arguments.

    Attributes:
        E: numbers of a vector; 0 for no vectors.
        D: side of the matrices; 0 for no matrices.
        BLOCK_D: side of a block that holds a matrix.
    """

    E: int
    D: int
    BLOCK_D: int

    @classmethod
    def of(cls, tables: Tables) -> "Sizes":
        """Returns the sizes that kernels for these tables are compiled for."""
        vectors, *matrices = tables
        widths = {table.shape[1] for table in matrices if table is not None}
        side = round(max(widths, default=0) ** 0.5)
        assert widths <= {side**2}, "rows of matrices are squares, of the same side in both directions"
        assert all(table is None or (table.is_contiguous() and table.dtype == torch.float32) for table in tables)
        size = 0 if vectors is None else vectors.shape[1]
        return cls(size, side, max(SMALLEST_SIDE, triton.next_power_of_2(side)))

    def grid(self, num_sequences: int) -> tuple[int, int]:
        """Returns the programs to start: a row for each sequence, a column for each part of its features."""
        return num_sequences, 2 + triton.cdiv(self.E, VECTOR_BLOCK.value)

    @property
    def options(self) -> dict[str, int]:
        """How a kernel is compiled: so many warps that a product stays in registers, a * b + c in one instruction."""
        return {"num_warps": 16 if self.BLOCK_D > 32 else 4, "enable_fp_fusion": True}


def row_gradients(tables: Tables, num_tokens: int) -> tuple[torch.Tensor | None, ...]:
    """Room for a row per token and table."""
    return tuple(None if table is None else table.new_empty(num_tokens, table.shape[1]) for table in tables)


@triton.jit
def square(D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Where the numbers of a matrix lie in its row, and which places of the block are inside it."""
    row = tl.arange(0, BLOCK_D)[:, None]
    column = tl.arange(0, BLOCK_D)[None, :]
    return row * D + column, (row < D) & (column < D)


@triton.jit
def identity(BLOCK_D: tl.constexpr):
    """Returns the identity matrix [BLOCK_D, BLOCK_D], the product of no matrices."""
    return (tl.arange(0, BLOCK_D)[:, None] == tl.arange(0, BLOCK_D)[None, :]).to(tl.float32)


@triton.jit
def load_row(table, ids, token, places, inside, SIZE: tl.constexpr):
    """The table's row of a token; 0 outside."""
    return tl.load(table + tl.load(ids + token) * SIZE + places, mask=inside, other=0.0)


@triton.jit
def multiply(left, right):
    """Left times right, in float32 throughout."""
    return tl.dot(left, right, input_precision="ieee")
