"""CBOW, CMOW and Hybrid sentence representations (paper, section III; Mai et al. 2019).

Shapes: B batch, L tokens, D matrix side, E vector size, V vocabulary, F features.
"""

import torch
from torch import nn

from student.products import ordered_product


class VectorSum(nn.Module):
    """CBOW: the sum of the tokens' vectors, v_1 + … + v_L. The padding vector is 0 and stays so."""

    def __init__(self, vocabulary_size: int, vector_size: int, pad_id: int, initializer_range: float) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary_size, vector_size, padding_idx=pad_id)
        nn.init.normal_(self.table.weight, std=initializer_range)
        _set_row(self.table, pad_id, torch.zeros(vector_size))

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns sums_BE, float32."""
        return self.table(ids_BL).sum(dim=1)  # type: ignore[no-any-return]


class MatrixProduct(nn.Module):
    """CMOW: the product of the tokens' matrices, X_1 X_2 … X_L, as a vector of D * D numbers.

    Matrices start near the identity, I + N(0, initializer_range²), or products of many would vanish or explode. The
    padding matrix is the identity and stays so.
    """

    def __init__(self, vocabulary_size: int, matrix_size: int, pad_id: int, initializer_range: float) -> None:
        super().__init__()
        self.matrix_size = matrix_size
        self.table = nn.Embedding(vocabulary_size, matrix_size * matrix_size, padding_idx=pad_id)
        identity = torch.eye(matrix_size).flatten()
        nn.init.normal_(self.table.weight, std=initializer_range)
        with torch.no_grad():
            self.table.weight += identity
        _set_row(self.table, pad_id, identity)

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns products_BF, float32, F = D * D."""
        m_BLDD = self.table(ids_BL).unflatten(-1, (self.matrix_size, self.matrix_size))
        return ordered_product(m_BLDD).flatten(1)


class SentenceEncoder(nn.Module):
    """[sum of v_t ; X_1 X_2 … X_L ; Y_L … Y_2 Y_1], with the parts that the sizes ask for.

    A sentence's representation does not depend on how far it is padded, nor on its batch. The backward product has its
    own matrices Y; a backward sum would equal the forward one.

    Args:
        vocabulary_size: V, number of rows of each table.
        matrix_size: D, or 0 for no products.
        vector_size: E, or 0 for no sum.
        bidirectional: whether there is a backward product.
        pad_id: the neutral token.
        initializer_range: standard deviation of the initial noise.
    """

    def __init__(
        self,
        vocabulary_size: int,
        matrix_size: int,
        vector_size: int,
        bidirectional: bool,
        pad_id: int,
        initializer_range: float = 0.01,
    ) -> None:
        super().__init__()
        common = (pad_id, initializer_range)
        self.vectors = VectorSum(vocabulary_size, vector_size, *common) if vector_size else None
        self.forward_matrices = MatrixProduct(vocabulary_size, matrix_size, *common) if matrix_size else None
        two_ways = matrix_size and bidirectional
        self.backward_matrices = MatrixProduct(vocabulary_size, matrix_size, *common) if two_ways else None
        self.size = vector_size + matrix_size**2 * (2 if two_ways else 1)

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns features_BF, float32, F = `size`, for ids padded at the end."""
        parts = []
        if self.vectors is not None:
            parts.append(self.vectors(ids_BL))
        if self.forward_matrices is not None:
            parts.append(self.forward_matrices(ids_BL))
        if self.backward_matrices is not None:
            parts.append(self.backward_matrices(ids_BL.flip(1)))
        return torch.cat(parts, dim=1)

    def tables(self) -> list[nn.Embedding]:
        """The tables with a row per token."""
        parts = (self.vectors, self.forward_matrices, self.backward_matrices)
        return [part.table for part in parts if part is not None]


def _set_row(table: nn.Embedding, row: int, value: torch.Tensor) -> None:
    with torch.no_grad():
        table.weight[row] = value
