"""Embedding tables: a row per token, trained in float32, stored smaller if wanted.

Rows are small deviations from a neutral row (the zero vector, the identity matrix), which is the padding's. The stored
form keeps only the deviations: at the same number of bytes a matrix is many times more exact than if stored itself.

Shapes: V vocabulary, F features, any shape of ids.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from student.kernels.compiled import use_huge_pages

SmallDtype = Literal["float16", "int8"]
DTYPES: dict[SmallDtype, torch.dtype] = {"float16": torch.float16, "int8": torch.int8}
INT8_MAX = 127


def trained_table(neutral_F: torch.Tensor, vocabulary_size: int, pad_id: int, initializer_range: float) -> nn.Embedding:
    """A table that starts as the neutral row plus N(0, initializer_range²); the padding is neutral and stays so."""
    table = nn.Embedding(vocabulary_size, len(neutral_F), padding_idx=pad_id)
    nn.init.normal_(table.weight, std=initializer_range)
    with torch.no_grad():
        table.weight += neutral_F
        table.weight[pad_id] = neutral_F
    return table


class SmallTable(nn.Module):
    """A table for inference: float16, or int8 with a scale per row.

    Args:
        neutral_F: float32, what a deviation is added to.
        vocabulary_size: number of rows.
        dtype: how a deviation is stored.
    """

    residual_VF: torch.Tensor
    scale_V: torch.Tensor
    neutral_F: torch.Tensor

    def __init__(self, neutral_F: torch.Tensor, vocabulary_size: int, dtype: SmallDtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("residual_VF", torch.zeros(vocabulary_size, len(neutral_F), dtype=DTYPES[dtype]))
        self.register_buffer("scale_V", torch.ones(vocabulary_size))
        self.register_buffer("neutral_F", neutral_F, persistent=False)

    @property
    def weight(self) -> torch.Tensor:
        """What is stored, deviations [V, F]; of int8, without their scale."""
        return self.residual_VF

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of ids, float32, with F as the last axis."""
        return self.neutral_F + self.scale_V[ids].unsqueeze(-1) * self.residual_VF[ids].float()

    @torch.no_grad()
    def fill(self, weight_VF: torch.Tensor) -> None:
        """Stores the rows of a trained table, each rounded to its nearest value."""
        residual_VF = weight_VF - self.neutral_F
        if self.dtype == "int8":
            largest_V = residual_VF.abs().amax(dim=1)
            self.scale_V.copy_(torch.where(largest_V > 0, largest_V / INT8_MAX, 1.0))
            residual_VF = (residual_VF / self.scale_V.unsqueeze(-1)).round()
        self.residual_VF.copy_(residual_VF)


TokenTable = nn.Embedding | SmallTable


def put_side_by_side(tables: Sequence[Tensor]) -> None:
    """Moves tables so that rows of the same number follow each other in memory: fetched faster than from many places.

    Each becomes a part of one tensor. For those who read tables by row only: torch's fused optimizers write beyond the
    rows of such a table. Tables on a GPU stay as they are: its kernels take whole ones.

    Args:
        tables: each [rows, any], on the same device and of the same type; are changed in place.
    """
    if not tables[0].is_cpu:
        return
    widths = [table.shape[1] for table in tables]
    whole = tables[0].new_empty(len(tables[0]), sum(widths))
    use_huge_pages(whole)
    for table, part in zip(tables, torch.split(whole, widths, dim=1), strict=True):
        table.data = part.copy_(table.data)
