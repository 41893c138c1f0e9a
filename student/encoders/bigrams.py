"""Sums of vectors of pairs of neighbouring tokens, as fastText's word n-grams (Joulin et al. 2017, section 2.1).

A sum ignores the order of tokens, and a product of matrices needs many rows to learn it. A pair has a vector if it is
frequent enough in training rows (see `student.initial_weights`). There are no hashed buckets, in which an unseen pair
would get the meaning of another one. Other pairs are ignored.

Shapes: T tokens of all sequences end to end, N sequences, S = N + 1 starts, B batch, L tokens, V vocabulary, K pairs, P
found pairs, G numbers of a pair.
"""

import torch
from torch import nn
from torch.nn import functional

from student.encoders.encoder import remaining_starts
from student.encoders.products import SparseGrads, reduce
from student.model.tables import SmallTable, TokenTable
from student.settings import TableDtype


class BigramSums(nn.Module):
    """Sums the vectors of the pairs in a sequence, or returns 0 without pairs.

    Vectors start from 0.

    Args:
        num_pairs: K, at least 1.
        size: G.
        vocabulary_size: V.
        table_dtype: the type of the stored vectors. Only float32 can be trained.
    """

    pairs_K2: torch.Tensor
    keys_K: torch.Tensor

    def __init__(self, num_pairs: int, size: int, vocabulary_size: int, table_dtype: TableDtype = "float32") -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        # Only float32 tables are trained, so smaller ones need no gradient and can keep scales beside rows.
        self.table: TokenTable
        if table_dtype == "float32":
            self.table = nn.Embedding(num_pairs, size)
            # Starting from 0 leaves the student as it is without bigrams until training rows move them.
            nn.init.zeros_(self.table.weight)
        else:
            self.table = SmallTable(torch.zeros(size), num_pairs, table_dtype)
        number_K = torch.arange(num_pairs)
        pairs_K2 = torch.stack([number_K // vocabulary_size, number_K % vocabulary_size], dim=1)
        self.register_buffer("pairs_K2", pairs_K2.int())
        # Keys follow from the pairs, so they are computed on loading instead of being stored.
        self.register_buffer("keys_K", self._keys(*pairs_K2.unbind(1)), persistent=False)
        # Keys must follow the loaded pairs, and the hook also checks files from elsewhere.
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]

    def set_pairs(self, pairs_K2: torch.Tensor) -> None:
        """Sets the pairs of tokens that have vectors.

        Raises:
            ValueError: if they do not ascend, or a token is not in the vocabulary.
        """
        if bool(((pairs_K2 < 0) | (pairs_K2 >= self.vocabulary_size)).any()):
            raise ValueError(f"a pair has a token beyond the vocabulary of {self.vocabulary_size}")
        keys_K = self._keys(*pairs_K2.long().unbind(1))
        # The binary search needs ascending keys and would silently miss pairs otherwise.
        if not bool((keys_K.diff() > 0).all()):
            raise ValueError("the pairs of tokens do not ascend")
        self.pairs_K2.copy_(pairs_K2)
        self.keys_K.copy_(keys_K)

    def vectors(self) -> torch.Tensor:
        """The vectors of all pairs, float32 [K, G]."""
        return self.table(torch.arange(len(self.pairs_K2), device=self.pairs_K2.device))  # type: ignore[no-any-return]

    @torch.no_grad()
    def take_over(self, pairs_K2: torch.Tensor, vectors_KG: torch.Tensor) -> None:
        """Copies vectors of pairs from another table. Pairs without a vector there do not change.

        Args:
            pairs_K2: distinct pairs of tokens.
            vectors_KG: their vectors.
        """
        row_K, is_found_K = self._rows(self._keys(*pairs_K2.to(self.keys_K).unbind(1)))
        self.table.weight[row_K[is_found_K]] = vectors_KG.to(self.table.weight)[is_found_K]

    def forward(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns sums_NG, float32. See `Encoder.reduce` for the arguments."""
        rows_P, starts_S = self.found(ids_T, starts_S)
        # No kernel reads int8, so the rows are scaled first. Kernels refuse empty tables, so one row is read at least.
        if self.table.weight.dtype == torch.int8:
            vectors_PG = self.table(rows_P if len(rows_P) else rows_P.new_zeros(1))
            return reduce((vectors_PG, None, None), torch.arange(len(rows_P), device=rows_P.device), starts_S)
        return reduce((self.table.weight, None, None), rows_P, starts_S, sparse_grads=sparse_grads)

    def found(self, ids_T: torch.Tensor, starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The pairs with a vector, sequence by sequence.

        Returns:
            rows_P: their rows, int64.
            starts_S: the start of each sequence's pairs.
        """
        keys_T = self._keys(ids_T, functional.pad(ids_T[1:], (0, 1), value=self.vocabulary_size))
        row_T, is_found_T = self._rows(keys_T)
        # Sequences lie end to end, so without this a sequence's last token would pair with the next one's first.
        is_found_T[starts_S[1:][starts_S[1:] > 0] - 1] = False
        return row_T[is_found_T], remaining_starts(is_found_T, starts_S)

    def exported(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns sums_BG like `forward`, for ids padded at the end, in a graph of torch's own operators."""
        keys_BL = self._keys(ids_BL, functional.pad(ids_BL[:, 1:], (0, 1), value=self.vocabulary_size))
        row_BL = torch.zeros_like(ids_BL)
        step = 1 << len(self.keys_K).bit_length()
        # ONNX has no `searchsorted`, so the graph contains an unrolled binary search.
        while step := step // 2:
            further_BL = (row_BL + step).clamp(max=len(self.keys_K) - 1)
            row_BL = torch.where(self.keys_K[further_BL] <= keys_BL, further_BL, row_BL)
        v_BLG: torch.Tensor = self.table(row_BL)
        return v_BLG.where((self.keys_K[row_BL] == keys_BL).unsqueeze(2), 0).sum(dim=1)

    def _rows(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rows of pairs, and whether they have one."""
        row = torch.searchsorted(self.keys_K, keys).clamp(max=len(self.keys_K) - 1)
        return row, self.keys_K[row] == keys

    def _keys(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Returns a number for each pair of tokens, ordered by the first and then the second, which may be missing."""
        # The factor is one more than the vocabulary, so that the missing neighbour of a last token has a key, too.
        return first * (self.vocabulary_size + 1) + second


def _after_loading(pairs: BigramSums, _: object) -> None:
    """Not a lambda, so that students can be pickled."""
    pairs.set_pairs(pairs.pairs_K2)
