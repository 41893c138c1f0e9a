"""CBOW, CMOW and Hybrid representations (paper, section III, and Mai et al. 2019).

Shapes: B batch, L tokens, T tokens of all sequences end to end, N sequences, S = N + 1 starts, D matrix side, E vector
size, V vocabulary, F features, K pairs of tokens with a vector, P found pairs, G numbers of a pair.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from student.encoders.encoder import Encoder, remaining_starts
from student.encoders.products import NO_PADDING, SparseGrads, reduce, scan
from student.encoders.specs import Cbow, Cmow, Hybrid, Sums
from student.kernels.reference import GROUP, Tables, exported_prefixes, exported_product, largest
from student.model.architecture import EncoderConfig
from student.model.tables import RowIndex, SmallTable, TokenTable, put_side_by_side, trained_table
from student.settings import TableDtype


def window_starts(starts_S: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the starts of the windows of sequences, and the sequence of each window.

    Args:
        starts_S: int64. Sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
        size: tokens per window. The last window of a sequence may be shorter, and an empty sequence has an empty
            window.

    Returns: Starts of windows, int64 [W + 1], and the number of each window's sequence, int64 [W].
    """
    # At least one window per sequence gives empty sequences a representation, as without windows.
    counts_N = (starts_S.diff() + size - 1).div(size, rounding_mode="floor").clamp(min=1)
    sequence_W = torch.arange(len(counts_N), device=starts_S.device).repeat_interleave(counts_N)
    first_N = counts_N.cumsum(0) - counts_N
    place_W = torch.arange(len(sequence_W), device=starts_S.device) - first_N[sequence_W]
    return torch.cat([starts_S[sequence_W] + place_W * size, starts_S[-1:]]), sequence_W


def joined(features_WF: torch.Tensor, sequence_W: torch.Tensor, maxima: slice) -> torch.Tensor:
    """Returns the means of the windows' features, or for features that are maxima the largest.

    Args:
        features_WF: the features of the windows.
        sequence_W: the second result of `window_starts`.
        maxima: which features are maxima.

    Returns:
        features_NF.
    """
    counts_N = sequence_W.bincount()
    sums_NF = features_WF.new_zeros(len(counts_N), features_WF.shape[1]).index_add(0, sequence_W, features_WF)
    means_NF = sums_NF / counts_N.unsqueeze(1)
    largest_WF = features_WF[:, maxima]
    index_WF = sequence_W.unsqueeze(1).expand_as(largest_WF)
    # A mean of maxima would not be the maximum, which whole texts are trained with.
    largest_NF = means_NF[:, maxima].scatter_reduce(0, index_WF, largest_WF, "amax", include_self=False)
    return torch.cat([means_NF[:, : maxima.start], largest_NF, means_NF[:, maxima.stop :]], dim=1)


class PooledVectors(nn.Module):
    """CBOW: the sum of the tokens' vectors, v_1 + … + v_L, and optionally their maxima.

    The padding vector is 0 and does not change. A maximum ignores the padding, and is 0 without tokens.
    """

    def __init__(self, table: TokenTable, with_max: bool) -> None:
        super().__init__()
        self.table, self.with_max = table, with_max

    def forward(self, rows_BL: torch.Tensor, is_token_BL: torch.Tensor) -> torch.Tensor:
        """Returns [sums, maxima] of the table's rows, float32 [B, E] or [B, 2 E]."""
        v_BLE = self.table(rows_BL)
        sums_BE = v_BLE.sum(dim=1)
        return torch.cat([sums_BE, largest(v_BLE, is_token_BL)], dim=1) if self.with_max else sums_BE


class MatrixProduct(nn.Module):
    """CMOW: the product of the tokens' matrices, X_1 X_2 … X_L, as a vector of F = D * D numbers.

    Matrices start near the identity, I + N(0, initializer_range²), or products of many would vanish or explode. The
    padding matrix is the identity and does not change.
    """

    def __init__(self, table: TokenTable, matrix_size: int) -> None:
        super().__init__()
        self.matrix_size = matrix_size
        self.table = table

    def forward(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """Returns products_BF, float32, for a graph that supports any L up to ``longest``."""
        m_BLDD = self.table(ids_BL).unflatten(-1, (self.matrix_size, self.matrix_size))
        return exported_product(m_BLDD, longest).flatten(1)


class BigramSums(nn.Module):
    """Sums of vectors of pairs of neighbouring tokens, as fastText's word n-grams (Joulin et al. 2017, section 2.1).

    A sum ignores the order of tokens, and a product of matrices needs many rows to learn it. A pair has a vector if it
    is frequent enough in training rows (see `student.initial_weights`). There are no hashed buckets, in which an unseen
    pair would get the meaning of another one. Other pairs are ignored. Vectors start from 0.

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
        self.vocabulary_size, self.size = vocabulary_size, size
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


class MatrixEncoder(Encoder):
    """[sum of v_t, max of v_t, X_1 X_2 … X_L, Y_L … Y_2 Y_1, sum of pairs], with the parts of the shape.

    A sentence's representation does not depend on its padding or its batch. The backward product has its own matrices
    Y. A backward sum would equal the forward one.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        spec = config.encoder
        assert isinstance(spec, Sums), type(spec)
        num_rows = config.used_rows or config.num_tokens

        def table(neutral_F: torch.Tensor) -> TokenTable:
            if config.table_dtype == "float32":
                return trained_table(neutral_F, config.num_tokens, config.pad_id, spec.initializer_range)
            return SmallTable(neutral_F, num_rows, config.table_dtype)

        def product() -> MatrixProduct:
            return MatrixProduct(table(torch.eye(config.matrix_size).flatten()), config.matrix_size)

        self.pad_id, self.vector_size, self.matrix_size = config.pad_id, config.vector_size, config.matrix_size
        # A backward sum equals the forward one, so only matrices need a second direction.
        two_ways = isinstance(spec, Hybrid | Cmow) and spec.bidirectional
        self.with_max = isinstance(spec, Hybrid | Cbow) and spec.pooling == "sum+max"
        self.window_size = spec.window_size
        vectors = table(torch.zeros(self.vector_size)) if self.vector_size else None
        self.vectors = PooledVectors(vectors, self.with_max) if vectors is not None else None
        self.forward_matrices = product() if self.matrix_size else None
        self.backward_matrices = product() if two_ways else None
        is_small = config.table_dtype != "float32"
        self.rows = RowIndex(config.num_tokens, num_rows, config.pad_id) if is_small else None
        bigrams = spec.num_bigrams or 0, spec.bigram_size, config.num_tokens, config.table_dtype
        self.bigrams = BigramSums(*bigrams) if spec.num_bigrams else None
        products_size = self.matrix_size**2 * (1 + two_ways)
        self.size = self.vector_size * (1 + self.with_max) + products_size + spec.bigram_size
        # Per token, the backward sum does differ: it is a suffix instead of a prefix. The paper's 1,600 numbers count
        # it.
        self.token_size = self.vector_size * (1 + two_ways) + products_size

    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        if self.window_size is None:
            return self._reduce(ids_T, starts_S, sparse_grads)
        starts_W, sequence_W = window_starts(starts_S, self.window_size)
        features_WF = self._reduce(ids_T, starts_W, sparse_grads)
        return joined(features_WF, sequence_W, slice(self.vector_size, self.vector_size * (1 + self.with_max)))

    def _reduce(self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None) -> torch.Tensor:
        tables, rows_T, padding = self._tables(ids_T)
        features_NF = reduce(tables, rows_T, starts_S, padding, sparse_grads, self.with_max)
        if self.bigrams is None:
            return features_NF
        # The bigram table has other ids than the token tables, so its gradients go to a buffer of their own.
        bigrams_NG = self.bigrams(ids_T, starts_S, None if sparse_grads is None else sparse_grads.bigrams)
        return torch.cat([features_NF, bigrams_NG], dim=1)

    def bigram_rows(self, ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor | None:
        """See `Encoder`."""
        if self.bigrams is None:
            return None
        # A pair across the border of two windows is not read, so its row must not count as used.
        starts = starts_S if self.window_size is None else window_starts(starts_S, self.window_size)[0]
        return self.bigrams.found(ids_T, starts)[0]

    def bigram_table(self) -> nn.Embedding | None:
        """See `Encoder`."""
        table = None if self.bigrams is None else self.bigrams.table
        return table if isinstance(table, nn.Embedding) else None

    def scan(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns sums and products of each token's prefix, and if bidirectional of its suffix.

        Position t contains [v_1 + … + v_t, X_1 … X_t] and, if bidirectional, [v_t + … + v_L, Y_L … Y_t]. The published
        code leaves the backward half in processing order, so that it belongs to position t only in the middle. There
        are no maxima.

        Returns: features_TP, float32, P = `token_size`. See `reduce` for the arguments.
        """
        tables, rows_T, padding = self._tables(ids_T)
        return scan(tables, rows_T, starts_S, padding, sparse_grads)

    def per_token(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Like `scan`, padded: beyond its end, the forward half has the whole sequence, and the backward half nothing.

        Returns: features_NLP, float32, with L of at least 1.
        """
        features_TP = self.scan(ids_T, starts_S, sparse_grads)
        # The padding's own representation is neutral, and the scan returns it in the student's layout and type.
        nothing_P = self.scan(torch.tensor([self.pad_id]).to(ids_T), torch.tensor([0, 1]).to(ids_T)).detach()
        features_XP = torch.cat([features_TP, nothing_P])
        lengths_N1, nothing = starts_S.diff().unsqueeze(1), len(features_TP)
        position_L = torch.arange(max(1, int(lengths_N1.max())), device=ids_T.device)
        place_NL = starts_S[:-1].unsqueeze(1) + position_L
        is_inside_NL = position_L < lengths_N1
        last_N1 = torch.where(lengths_N1 > 0, starts_S[1:].unsqueeze(1) - 1, nothing)
        # Beyond the end, the forward half holds the whole sequence, and the backward half holds nothing.
        read_P = self.vector_size + self.matrix_size**2
        return torch.cat(
            [
                features_XP[torch.where(is_inside_NL, place_NL, last_N1), :read_P],
                features_XP[torch.where(is_inside_NL, place_NL, nothing), read_P:],
            ],
            dim=2,
        )

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token: one matrix product per direction."""
        ways = (self.forward_matrices is not None) + (self.backward_matrices is not None)
        return ways * self.matrix_size**3

    def export_problems(self, longest: int) -> list[str]:
        """Returns the reasons why torch cannot export the encoder for inputs of any length up to ``longest``."""
        if self.window_size is not None:
            return ["a student with windows cannot be exported"]
        # With a single group the exporter would fix the number of groups and refuse shorter inputs.
        if self.matrix_size and longest <= GROUP:
            return [f"a student of matrices for at most {GROUP} tokens cannot be exported"]
        return []

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """Returns features_BF like `forward`, in a graph of torch's own operators for any L up to ``longest``."""
        parts, is_token_BL = [], ids_BL != self.pad_id
        bigrams = [] if self.bigrams is None else [self.bigrams.exported(ids_BL)]
        if self.rows is not None:
            ids_BL = self.rows(ids_BL)
        if self.vectors is not None:
            parts.append(self.vectors(ids_BL, is_token_BL))
        if self.forward_matrices is not None:
            parts.append(self.forward_matrices(ids_BL, longest))
        if self.backward_matrices is not None:
            # Padding comes first after the flip, and identity matrices do not change the product.
            parts.append(self.backward_matrices(ids_BL.flip(1), longest))
        return torch.cat(parts + bigrams, dim=1)

    def exported_scan(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        v_BLE, m_BLM, n_BLM = self._exported_rows(ids_BL)
        parts = []
        if v_BLE is not None:
            parts.append(v_BLE.cumsum(1))
        if m_BLM is not None:
            parts.append(exported_prefixes(m_BLM, longest))
        if n_BLM is not None and v_BLE is not None:
            parts.append(v_BLE.flip(1).cumsum(1).flip(1))
        if n_BLM is not None:
            parts.append(exported_prefixes(n_BLM.flip(1), longest).flip(1))
        return torch.cat(parts, dim=2)

    def exported_alone(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """See `Encoder`."""
        return torch.cat([part for part in self._exported_rows(ids_BL) if part is not None], dim=2)

    def _exported_rows(self, ids_BL: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the rows of each token in the tables: vectors, matrices and backward matrices."""
        rows_BL = ids_BL if self.rows is None else self.rows(ids_BL)
        parts = (self.vectors, self.forward_matrices, self.backward_matrices)
        return tuple(None if part is None else part.table(rows_BL) for part in parts)

    def copy_rows(self, source: Encoder, source_rows: torch.Tensor | slice, rows: torch.Tensor | slice) -> None:
        """See `Encoder`. All pairs of tokens become those of the source, in this vocabulary."""
        super().copy_rows(source, source_rows, rows)
        other = matrix_encoder(source).bigrams
        if self.bigrams is None or other is None:
            return
        # Pairs are of token ids, and ids change when the vocabulary is pruned or restored.
        token_V = torch.zeros(other.vocabulary_size, dtype=torch.int32, device=other.pairs_K2.device)
        here = torch.arange(self.bigrams.vocabulary_size, dtype=torch.int32)[rows]
        token_V[source_rows] = here.to(token_V)
        pairs_K2 = token_V[other.pairs_K2.long()]
        self.bigrams.set_pairs(pairs_K2)
        self.bigrams.take_over(pairs_K2, other.vectors())

    def set_pairs(self, pairs_K2: torch.Tensor) -> None:
        """Sets the pairs of tokens that have a vector. See `BigramSums.set_pairs`."""
        assert self.bigrams is not None, "only called for an encoder with bigrams"
        self.bigrams.set_pairs(pairs_K2)

    def _tables(self, ids_T: torch.Tensor) -> tuple[Tables, torch.Tensor, int]:
        """Returns the tables for the kernels, their rows [T], and the row without gradient."""
        tables, padding = self.weights(), self.pad_id
        # Small tables are never trained, so no row needs protection from gradients.
        if self.rows is not None:
            ids_T, padding = self.rows(ids_T), NO_PADDING
        # No kernel reads int8, so the batch's rows become a float32 table. Kernels refuse a table without rows.
        if any(table is not None and table.dtype == torch.int8 for table in tables):
            gathered = ids_T if len(ids_T) else ids_T.new_zeros(1)
            tables = self._of_each(lambda part: part.table(gathered))
            return tables, torch.arange(len(ids_T), device=ids_T.device), padding
        return tables, ids_T, padding

    def weights(self) -> Tables:
        """Returns the stored numbers of the tables of vectors, matrices and backward matrices, or None if absent."""
        return self._of_each(lambda part: part.table.weight)

    def _of_each(self, numbers: Callable[[PooledVectors | MatrixProduct], torch.Tensor]) -> Tables:
        parts = (self.vectors, self.forward_matrices, self.backward_matrices)
        vectors, forward, backward = (None if part is None else numbers(part) for part in parts)
        return vectors, forward, backward

    def parts(self) -> list[PooledVectors | MatrixProduct]:
        """Returns the parts of the representation in their order."""
        return [part for part in (self.vectors, self.forward_matrices, self.backward_matrices) if part is not None]

    def vector_table(self) -> nn.Embedding | None:
        """See `Encoder`."""
        table = None if self.vectors is None else self.vectors.table
        return table if isinstance(table, nn.Embedding) else None

    def lay_out(self) -> None:
        """See `Encoder`."""
        put_side_by_side([part.table.weight for part in self.parts()])

    def tables(self) -> list[nn.Embedding]:
        """Returns the trainable tables. Empty if they are stored as float16 or int8."""
        return [part.table for part in self.parts() if isinstance(part.table, nn.Embedding)]


def matrix_encoder(encoder: Encoder) -> MatrixEncoder:
    """Returns an encoder that the caller has checked to be one of sums and products."""
    assert isinstance(encoder, MatrixEncoder), type(encoder)
    return encoder
