"""The interface of encoders, by which the rest of the student uses them.

Shapes: B batch, L tokens, T tokens of all sequences end to end, N sequences, S = N + 1 starts, P features of a token, F
features of a sequence, V vocabulary, X numbers of a row.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from student.encoders.products import SparseGrads


class Encoder(nn.Module):
    """Maps sequences of tokens to features, which do not depend on padding and on other rows of the batch.

    Not every encoder implements everything. Callers first check its specification and its `export_problems` for
    supported pairs, token features and graphs.

    Attributes:
        pad_id: the padding token.
        size: F, the features of a sequence.
        token_size: P, the features of a token, or 0 without such features.
        start_deviation: standard deviation of vectors that start from others, such as a teacher's.
        counts_less: whether initial vectors of frequent tokens are shorter, which is useful for sums.
        has_neutral_rows: whether tokens without training rows get the rows of the padding. In sums and products such a
            token has no effect.
    """

    has_neutral_rows: ClassVar[bool] = True
    pad_id: int
    size: int
    token_size: int
    counts_less: ClassVar[bool] = True
    # Vectors that are summed start best with this deviation: 0.02 and 0.5 gave lower scores on STS-B.
    start_deviation: float = 0.1

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns features_BF, float32, F = `size`, for padded ids."""
        return self.reduce(*without_padding(ids_BL, self.pad_id))

    @abstractmethod
    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns the representations of sequences end to end.

        Args:
            ids_T: int64.
            starts_S: int64. Sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``.
            sparse_grads: receives the gradients of the trained tables. See `student.encoders.products`.

        Returns:
            features_NF, float32, F = `size`.
        """

    def reduce_pairs(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns the representations of pairs, for an encoder that reads both sentences at once.

        Args:
            ids_T: see `reduce`. All first sentences precede the second ones.
            starts_S: see `reduce`.
            sparse_grads: see `reduce`.

        Returns:
            features_BF, float32, F = `size`, of half as many pairs as there are sequences.
        """
        raise NotImplementedError

    def scan(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Returns the features of each token: features_TP, float32, P = `token_size`.

        See `reduce` for the arguments.
        """
        raise NotImplementedError

    @abstractmethod
    def tables(self) -> list[nn.Embedding]:
        """Returns the tables with a row per token. Those that need gradients are trained and have the same ids."""

    def bigram_table(self) -> nn.Embedding | None:
        """Returns the trained table of pairs of tokens, or None."""
        return None

    def bigram_rows(self, ids_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor | None:
        """Returns the rows of that table for the arguments of `reduce`, int64, or None without a table."""
        return None

    @property
    @abstractmethod
    def multiply_adds(self) -> int:
        """Multiply-adds per token."""

    @property
    def multiply_adds_per_input(self) -> int:
        """Multiply-adds per sequence, in addition to those per token."""
        return 0

    @property
    def multiply_adds_per_pair(self) -> int:
        """Multiply-adds per pair of a sequence's tokens. There are L² pairs."""
        return 0

    def vector_table(self) -> nn.Embedding | None:
        """Returns the table of token vectors that may start from a teacher's, or None."""
        return None

    @torch.no_grad()
    def start_vectors(self, ids_N: torch.Tensor, start_NK: torch.Tensor) -> None:
        """Sets the initial vectors of these tokens. Numbers beyond K do not change."""
        table = self.vector_table()
        assert table is not None, "only called for an encoder with vectors"
        # A teacher narrower than the student leaves the last columns as noise, which training can use.
        table.weight[ids_N, : start_NK.shape[1]] = start_NK.to(table.weight)

    def lay_out(self) -> None:
        """Arranges the tables for fast reading. They cannot be trained afterwards."""

    def per_token(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """Like `scan`, padded with zeros: features_NLP, float32, with L of at least 1."""
        return padded(self.scan(ids_T, starts_S, sparse_grads), starts_S)[0]

    def export_problems(self, longest: int) -> list[str]:
        """Returns the reasons why torch cannot export the encoder for inputs of any length up to ``longest``."""
        return ["a student with this encoder cannot be exported"]

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """Returns features_BF like `forward`, in a graph that supports any L up to ``longest``."""
        raise NotImplementedError

    def exported_scan(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """Returns features_BLP like `per_token` for tokens, in such a graph. Features of padding are undefined."""
        raise NotImplementedError

    def exported_alone(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Returns features_BLF like `reduce` for each single token, in such a graph."""
        raise NotImplementedError

    def exported_pairs(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor) -> torch.Tensor:
        """Returns features_BF like `reduce_pairs`, in such a graph."""
        raise NotImplementedError

    def trained_tables(self) -> list[nn.Embedding]:
        """Returns the trained tables."""
        return [table for table in self.tables() if table.weight.requires_grad]

    def other_parameters(self) -> list[nn.Parameter]:
        """Returns the trained parameters other than the tables."""
        bigrams = self.bigram_table()
        # Modules share no useful order, so tables are recognised by identity and not by name.
        rows = {id(table.weight) for table in [*self.tables(), *([] if bigrams is None else [bigrams])]}
        return [p for p in self.parameters() if id(p) not in rows and p.requires_grad]

    @torch.no_grad()
    def used_ids(self) -> torch.Tensor:
        """Returns the tokens with a row that is not neutral, and the padding: int64 [R], ascending.

        For trained tables.
        """
        weights = [table.weight for table in self.tables()]
        is_used_V = torch.zeros(len(weights[0]), dtype=torch.bool, device=weights[0].device)
        for weight_VX in weights:
            # A row that equals the padding's in every table changes no output, whether it was trained or not.
            is_used_V |= (weight_VX != weight_VX[self.pad_id]).any(dim=1)
        is_used_V[self.pad_id] = True
        return is_used_V.nonzero().squeeze(1)

    @torch.no_grad()
    def neutralise(self, is_neutral_V: torch.Tensor) -> None:
        """Makes the rows of these tokens neutral in all tables. The argument is a bool per token."""
        for table in self.tables():
            # Cloning avoids reading the padding's row while the same tensor is written.
            table.weight[is_neutral_V.to(table.weight.device)] = table.weight[self.pad_id].clone()

    @torch.no_grad()
    def copy_rows(self, source: "Encoder", source_rows: torch.Tensor | slice, rows: torch.Tensor | slice) -> None:
        """Copies rows of another encoder's tables to their places here, and all other parameters.

        Args:
            source: an encoder that only differs in the vocabulary.
            source_rows: int64 [R], or a slice.
            rows: int64 [R], or a slice.
        """
        for table, source_table in zip(self.tables(), source.tables(), strict=True):
            table.weight[rows] = source_table.weight[source_rows].to(table.weight.device)
        # Both encoders have the same architecture, so parameters correspond by their order.
        for parameter, other in zip(self.other_parameters(), source.other_parameters(), strict=True):
            parameter.copy_(other)


def without_padding(ids_BL: torch.Tensor, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns padded ids as sequences end to end: ids_T and starts_S. Padding may be at any position."""
    is_token_BL = ids_BL != pad_id
    return ids_BL[is_token_BL], functional.pad(is_token_BL.sum(dim=1).cumsum(0), (1, 0))


def remaining_starts(is_left_T: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
    """Returns the starts of sequences after tokens were removed, int64 [S]."""
    return functional.pad(is_left_T.cumsum(0), (1, 0))[starts_S]


def padded(features_TP: torch.Tensor, starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns padded sequences: features_NLP, with 0 beyond their ends, and which positions have tokens, bool [N, L].

    L is at least 1.
    """
    lengths_N = starts_S.diff()
    # One column at least keeps later maxima and softmaxes defined for batches of empty sequences.
    position_L = torch.arange(max([1, *lengths_N.tolist()]), device=starts_S.device)
    is_token_NL = position_L < lengths_N.unsqueeze(1)
    padded_NLP = features_TP.new_zeros(*is_token_NL.shape, features_TP.shape[1])
    padded_NLP[is_token_NL] = features_TP
    return padded_NLP, is_token_NL
