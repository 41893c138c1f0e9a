"""Embedding tables: a row per token, trained in float32, and stored in a smaller type on request.

Rows are small deviations from a neutral row (the zero vector, the identity matrix), which is the padding's. The stored
form contains only the deviations, which is many times more exact for the same number of bytes.

An untrained token is also neutral, so the small tables have no row for it. It shares the padding's. See `RowIndex`.

Shapes: V vocabulary, R rows that are stored, F features, any shape of ids.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from student.kernels.native import use_huge_pages

SmallDtype = Literal["float16", "int8"]
DTYPES: dict[SmallDtype, torch.dtype] = {"float16": torch.float16, "int8": torch.int8}
# -128 is not used, so that the scale is symmetric and 0 stays exactly 0.
INT8_MAX = 127


def trained_table(neutral_F: torch.Tensor, vocabulary_size: int, pad_id: int, initializer_range: float) -> nn.Embedding:
    """A table with the start N(0, initializer_range²) plus the neutral row. The padding is always neutral."""
    table = nn.Embedding(vocabulary_size, len(neutral_F), padding_idx=pad_id)
    nn.init.normal_(table.weight, std=initializer_range)
    with torch.no_grad():
        # Matrices start near the identity (Mai et al. 2019). Products of many random matrices would vanish or explode.
        table.weight += neutral_F
        # `padding_idx` keeps the gradient away, but the noise above has overwritten the row.
        table.weight[pad_id] = neutral_F
    return table


class SmallTable(nn.Module):
    """A table for inference: float16, or int8 with a scale per row.

    Args:
        neutral_F: float32, the row from which deviations are stored.
        num_rows: R.
        dtype: the type of a stored deviation.
    """

    residual_RF: torch.Tensor
    scale_R: torch.Tensor
    neutral_F: torch.Tensor

    def __init__(self, neutral_F: torch.Tensor, num_rows: int, dtype: SmallDtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("residual_RF", torch.zeros(num_rows, len(neutral_F), dtype=DTYPES[dtype]))
        self.register_buffer("scale_R", torch.ones(num_rows))
        # The neutral row follows from the configuration, so files do not store it.
        self.register_buffer("neutral_F", neutral_F, persistent=False)

    @property
    def weight(self) -> torch.Tensor:
        """The stored deviations [R, F], for int8 without their scale."""
        return self.residual_RF

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the table's rows of these numbers, float32, with F as the last axis."""
        return self.neutral_F + self.scale_R[rows].unsqueeze(-1) * self.residual_RF[rows].float()

    @torch.no_grad()
    def fill(self, weight_RF: torch.Tensor) -> None:
        """Stores rows of a trained table, with each number rounded to the nearest one of the dtype."""
        residual_RF = weight_RF - self.neutral_F
        if self.dtype == "int8":
            largest_R = residual_RF.abs().amax(dim=1)
            # One scale per row keeps rare rows exact: a common scale would be set by the largest row.
            self.scale_R.copy_(torch.where(largest_R > 0, largest_R / INT8_MAX, 1.0))
            residual_RF = (residual_RF / self.scale_R.unsqueeze(-1)).round()
        self.residual_RF.copy_(residual_RF)


TokenTable = nn.Embedding | SmallTable


class RowIndex(nn.Module):
    """Maps tokens to rows of small tables: their own rows, or the neutral row of the padding.

    Only the tokens of the rows are stored. Invalid tokens are refused when weights are loaded.

    Args:
        vocabulary_size: V.
        num_rows: R, including the padding's row.
        pad_id: the padding's token.
    """

    token_R: torch.Tensor
    row_V: torch.Tensor

    def __init__(self, vocabulary_size: int, num_rows: int, pad_id: int) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.register_buffer("token_R", torch.arange(num_rows, dtype=torch.int32))
        self.register_buffer("row_V", torch.arange(vocabulary_size).clamp(max=num_rows - 1), persistent=False)
        # The index from tokens to rows follows from the loaded tokens and must be rebuilt with them.
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]

    def set_tokens(self, token_R: torch.Tensor) -> None:
        """Assigns the rows 0, 1, … to these tokens.

        Raises:
            ValueError: if they do not ascend, one of them is not in the vocabulary, or the padding is missing.
        """
        # These checks protect against files from elsewhere, whose rows could point outside the tables.
        if len(token_R) > 1 and not bool((token_R.diff() > 0).all()):
            raise ValueError("the tokens of the tables' rows do not ascend")
        if int(token_R[0]) < 0 or int(token_R[-1]) >= len(self.row_V):
            wrong = token_R[0] if token_R[0] < 0 else token_R[-1]
            raise ValueError(f"a row of the tables is for token {int(wrong)}, but the vocabulary has {len(self.row_V)}")
        padding = (token_R == self.pad_id).nonzero()
        if not len(padding):
            raise ValueError(f"the tables have no row for the padding, token {self.pad_id}")
        self.token_R.copy_(token_R)
        # Tokens without a row share the padding's, which is neutral, as unknown tokens should be.
        self.row_V.fill_(int(padding))
        self.row_V[token_R.long()] = torch.arange(len(token_R), device=token_R.device)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of ids, int64, of the same shape."""
        return functional.embedding(ids, self.row_V.unsqueeze(1)).squeeze(-1)


def _after_loading(index: RowIndex, _: object) -> None:
    """Not a lambda, so that students can be pickled."""
    index.set_tokens(index.token_R)


def put_side_by_side(tables: Sequence[Tensor]) -> None:
    """Moves tables so that rows with the same number are next to each other in memory, which is faster to read.

    Each becomes a part of one tensor. Only for tables that are read by row: torch's fused optimizers write beyond the
    rows of such a table. Tables on a GPU are not moved, because its kernels need whole tables.

    Args:
        tables: each [rows, any], on the same device and of the same type. They are changed in place.
    """
    # A GPU trains whole tables by torch's fused step, which needs rows without gaps.
    if not tables[0].is_cpu:
        return
    widths = [table.shape[1] for table in tables]
    whole = tables[0].new_empty(len(tables[0]), sum(widths))
    # Random rows of a large table miss the TLB. With huge pages they are read about twice as fast.
    use_huge_pages(whole)
    for table, part in zip(tables, torch.split(whole, widths, dim=1), strict=True):
        # Assigning `data` keeps the parameter objects, which optimizer and modules refer to.
        table.data = part.copy_(table.data)
