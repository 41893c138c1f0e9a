"""CBOW, CMOW and Hybrid representations (paper, section III; Mai et al. 2019).

Shapes: B batch, L tokens, D matrix side, E vector size, V vocabulary, F features.
"""

from collections.abc import Callable

import torch
from torch import nn

from student.architecture import EncoderConfig
from student.config import TableDtype
from student.kernels.reference import ordered_product, prefix_products
from student.tables import SmallTable, TokenTable, trained_table

Product = Callable[[torch.Tensor], torch.Tensor]


class VectorSum(nn.Module):
    """CBOW: the sum of the tokens' vectors, v_1 + … + v_L. The padding vector is 0 and stays so."""

    def __init__(self, table: TokenTable) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns sums_BE, float32."""
        return self.table(ids_BL).sum(dim=1)  # type: ignore[no-any-return]

    def prefixes(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns the sums of tokens 1 to t, sums_BLE, float32."""
        return self.table(ids_BL).cumsum(dim=1)  # type: ignore[no-any-return]


class MatrixProduct(nn.Module):
    """CMOW: the product of the tokens' matrices, X_1 X_2 … X_L, as a vector of F = D * D numbers.

    Matrices start near the identity, I + N(0, initializer_range²), or products of many would vanish or explode. The
    padding matrix is the identity and stays so.
    """

    def __init__(self, table: TokenTable, matrix_size: int) -> None:
        super().__init__()
        self.matrix_size = matrix_size
        self.table = table

    def forward(self, ids_BL: torch.Tensor, product: Product = ordered_product) -> torch.Tensor:
        """Returns products_BF, float32."""
        return product(self._matrices(ids_BL)).flatten(1)

    def prefixes(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns the products of tokens 1 to t, products_BLF, float32."""
        return prefix_products(self._matrices(ids_BL)).flatten(2)

    def _matrices(self, ids_BL: torch.Tensor) -> torch.Tensor:
        return self.table(ids_BL).unflatten(-1, (self.matrix_size, self.matrix_size))  # type: ignore[no-any-return]


class Encoder(nn.Module):
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
        table_dtype: how the tables are stored; only float32 can be trained.
    """

    def __init__(
        self,
        vocabulary_size: int,
        matrix_size: int,
        vector_size: int,
        bidirectional: bool,
        pad_id: int,
        initializer_range: float = 0.01,
        table_dtype: TableDtype = "float32",
    ) -> None:
        super().__init__()

        def table(neutral_F: torch.Tensor) -> TokenTable:
            if table_dtype == "float32":
                return trained_table(neutral_F, vocabulary_size, pad_id, initializer_range)
            return SmallTable(neutral_F, vocabulary_size, table_dtype)

        def product() -> MatrixProduct:
            return MatrixProduct(table(torch.eye(matrix_size).flatten()), matrix_size)

        two_ways = bool(matrix_size) and bidirectional
        self.vectors = VectorSum(table(torch.zeros(vector_size))) if vector_size else None
        self.forward_matrices = product() if matrix_size else None
        self.backward_matrices = product() if two_ways else None
        self.size = vector_size + matrix_size**2 * (1 + two_ways)
        self.token_size = self.size + (vector_size if two_ways else 0)

    @classmethod
    def of(cls, config: EncoderConfig) -> "Encoder":
        """The encoder that a configuration describes; a padding id past the vocabulary gets a row of its own."""
        return cls(
            max(config.vocabulary_size, config.pad_id + 1),
            config.matrix_size,
            config.vector_size,
            config.bidirectional,
            config.pad_id,
            config.initializer_range,
            config.table_dtype,
        )

    def forward(self, ids_BL: torch.Tensor, product: Product = ordered_product) -> torch.Tensor:
        """Returns features_BF, float32, F = `size`, for ids padded at the end; ``product`` multiplies the matrices."""
        parts = []
        if self.vectors is not None:
            parts.append(self.vectors(ids_BL))
        if self.forward_matrices is not None:
            parts.append(self.forward_matrices(ids_BL, product))
        if self.backward_matrices is not None:
            parts.append(self.backward_matrices(ids_BL.flip(1), product))
        return torch.cat(parts, dim=1)

    def per_token(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """What has been read up to each token, and for both directions what is read from the end back to it.

        Position t holds [v_1 + … + v_t ; X_1 … X_t] and, if bidirectional, [v_t + … + v_L ; Y_L … Y_t]. The published
        code leaves the backward half in processing order, so that it belongs to position t only in the middle.

        Returns:
            features_BLF, float32, F = `token_size`.
        """
        passes = [(ids_BL, self.vectors, self.forward_matrices)]
        if self.backward_matrices is not None:
            passes.append((ids_BL.flip(1), self.vectors, self.backward_matrices))
        parts = [
            torch.cat([part.prefixes(ids) for part in (vectors, matrices) if part is not None], dim=-1)
            for ids, vectors, matrices in passes
        ]
        return torch.cat([parts[0], *(part.flip(1) for part in parts[1:])], dim=-1)

    def parts(self) -> list[VectorSum | MatrixProduct]:
        """What the representation is put together from, in its order."""
        return [part for part in (self.vectors, self.forward_matrices, self.backward_matrices) if part is not None]

    def tables(self) -> list[nn.Embedding]:
        """The tables that can be trained, with a row per token; none if they are stored smaller."""
        return [part.table for part in self.parts() if isinstance(part.table, nn.Embedding)]
