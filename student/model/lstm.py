"""The student of Tang et al. (2019): vectors, an LSTM both ways, and its last states.

Shapes: T tokens of all sequences end to end, U of them that are no padding, N sequences, S = N + 1 starts, E numbers of
a token, D = 2 H states of both directions, V vocabulary, K numbers of a start, B batch, L tokens.
"""

import torch
from torch import nn
from torch.nn import functional

from student.model.bilstm import BiLstm, tokens_alone, without_gaps
from student.model.encoder import Encoder, EncoderShape, LstmShape
from student.model.products import SparseGrads, embedding_rows

UNKNOWN = 0.25  # vectors are drawn from -0.25 to 0.25: as large as word2vec's (Kim 2014)


class Vectors(nn.Module):
    """The vectors of tokens: of a trained table, and with two channels beside it of one that stays as it starts.

    The padding's vectors are 0 and stay so.
    """

    def __init__(self, shape: EncoderShape, channels: int) -> None:
        super().__init__()
        self.pad_id, self.size = shape.pad_id, channels * shape.vector_size
        self.trained = nn.Embedding(shape.vocabulary_size, shape.vector_size, padding_idx=shape.pad_id)
        self.frozen = nn.Embedding(*self.trained.weight.shape) if channels == 2 else None
        nn.init.uniform_(self.trained.weight, -UNKNOWN, UNKNOWN)
        with torch.no_grad():
            self.trained.weight[shape.pad_id] = 0
            if self.frozen is not None:
                self.frozen.weight.requires_grad_(False).copy_(self.trained.weight)

    def forward(self, ids: torch.Tensor, sparse_grads: SparseGrads | None = None) -> torch.Tensor:
        """Returns the tokens' vectors, float32, with E as the last axis; with ``sparse_grads``, of ids_T."""
        trained = embedding_rows(self.trained.weight, ids, self.pad_id, sparse_grads)
        if self.frozen is None:
            return trained
        return torch.cat([functional.embedding(ids, self.frozen.weight), trained], dim=-1)

    def tables(self) -> list[nn.Embedding]:
        """The tables."""
        return [self.trained] if self.frozen is None else [self.frozen, self.trained]


class VectorEncoder(Encoder):
    """What the encoders have in common that read vectors and nothing else of a token."""

    vectors: Vectors
    counts_less = False
    start_deviation = UNKNOWN / 3**0.5  # that of the vectors that are drawn

    def tables(self) -> list[nn.Embedding]:
        """See `Encoder`."""
        return self.vectors.tables()

    def vector_table(self) -> nn.Embedding:
        """See `Encoder`."""
        return self.vectors.trained

    @torch.no_grad()
    def start_vectors(self, ids_N: torch.Tensor, start_NK: torch.Tensor) -> None:
        """See `Encoder`; both channels start alike."""
        super().start_vectors(ids_N, start_NK)
        if self.vectors.frozen is not None:
            self.vectors.frozen.weight[ids_N] = self.vectors.trained.weight[ids_N]

    def export_problems(self, longest: int) -> list[str]:
        """See `Encoder`."""
        return []


class LstmEncoder(VectorEncoder):
    """[last state left to right ; last state right to left] of one layer over the tokens' vectors."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        lstm = lstm_shape(shape)
        self.pad_id, self.vectors = shape.pad_id, Vectors(shape, lstm.channels)
        self.lstm = BiLstm(self.vectors.size, lstm.hidden_size)
        self.size = self.token_size = self.lstm.size

    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        last_ND: torch.Tensor
        _, last_ND = self.lstm(*tokens_alone(self.vectors(ids_T, sparse_grads), ids_T != self.pad_id, starts_S))
        return last_ND

    def scan(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """The states of both directions at each token, states_TD; for arguments as of `reduce`."""
        is_token_T = ids_T != self.pad_id
        states_UD: torch.Tensor
        states_UD, _ = self.lstm(*tokens_alone(self.vectors(ids_T, sparse_grads), is_token_T, starts_S))
        states_TD = states_UD.new_zeros(len(ids_T), self.token_size)
        states_TD[is_token_T] = states_UD
        return states_TD

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token."""
        return self.lstm.multiply_adds

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        ids_BL, lengths_B = without_gaps(ids_BL, self.pad_id)
        return self.lstm.exported(self.vectors(ids_BL), lengths_B)[1]

    def exported_scan(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        return self.lstm.exported(self.vectors(ids_BL), (ids_BL != self.pad_id).sum(dim=1))[0]


def lstm_shape(shape: EncoderShape) -> LstmShape:
    """The shape of an encoder that is known to be of LSTMs."""
    assert shape.lstm is not None, "StudentConfig sees to it"
    return shape.lstm
