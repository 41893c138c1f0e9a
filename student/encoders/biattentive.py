"""The student of MKD (Liu et al. 2020), which reads two sentences with attention between them.

Shapes: T tokens of the first sentences end to end, U of the second ones, S = N + 1 starts, N sentences or pairs, L and
K tokens of the first and the second sentence, E numbers of a token, H hidden size, D = 2 H.
"""

import torch
from torch import nn
from torch.nn import functional

from student.encoders.encoder import padded
from student.encoders.lstm import BiLstm, VectorEncoder, Vectors, tokens_alone, without_gaps
from student.encoders.products import SparseGrads
from student.encoders.specs import Biattentive
from student.kernels.reference import largest
from student.model.architecture import EncoderConfig

# The first LSTM's states of all sentences end to end, and the starts of the sentences.
Sentences = tuple[torch.Tensor, torch.Tensor]
# The same states padded with 0, because attention multiplies rectangular arrays, and the mask of real tokens.
Padded = tuple[torch.Tensor, torch.Tensor]


class SecondReader(nn.Module):
    """An LSTM over a sentence's states X and their attention C: [X, X - C, X * C].

    Pools by max, mean and weighted sum.

    Args:
        state_size: D.
        hidden_size: H.
    """

    def __init__(self, state_size: int, hidden_size: int) -> None:
        super().__init__()
        self.lstm = BiLstm(3 * state_size, hidden_size)
        self.weigh = nn.Linear(self.lstm.size, 1)
        self.size = 3 * self.lstm.size

    def forward(self, states_TD: torch.Tensor, seen_TD: torch.Tensor, starts_S: torch.Tensor) -> torch.Tensor:
        """Returns pooled_NX, X = `size`, which is 0 for an empty sentence."""
        read_TD, _ = self.lstm(beside(states_TD, seen_TD), starts_S)
        return self.pooled(*padded(read_TD, starts_S))

    def exported(self, states: Padded, seen_NLD: torch.Tensor) -> torch.Tensor:
        """Returns the result of `forward`, in a graph that supports any L."""
        states_NLD, is_token_NL = states
        read_NLD, _ = self.lstm.exported(beside(states_NLD, seen_NLD), is_token_NL.sum(dim=1))
        return self.pooled(read_NLD, is_token_NL)

    def pooled(self, read_NLD: torch.Tensor, is_token_NL: torch.Tensor) -> torch.Tensor:
        """Returns the maxima, the mean, and the sum with learnt weights of the tokens."""
        is_token_NL1 = is_token_NL.unsqueeze(2)
        # An empty sentence has no tokens to divide by, and its mean is 0 as its maximum is.
        mean_ND = (read_NLD * is_token_NL1).sum(dim=1) / is_token_NL1.sum(dim=1).clamp(min=1)
        weighted_ND = (shares(self.weigh(read_NLD), is_token_NL1, dim=1) * read_NLD).sum(dim=1)
        return torch.cat([largest(read_NLD, is_token_NL), mean_ND, weighted_ND], dim=1)


class BiattentiveEncoder(VectorEncoder):
    """One LSTM for both sentences, attention of each token to the other sentence, and a second pooled LSTM for each.

    A single sentence is read as a pair with itself.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert isinstance(config.encoder, Biattentive), type(config.encoder)
        width, lstm_size = config.encoder.vector_size, config.encoder.lstm_size
        self.pad_id, self.vectors = config.pad_id, Vectors(config)
        self.map = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.lstm = BiLstm(width, lstm_size)
        # Only separate second LSTMs with one head match the 10.2 million parameters that MKD reports.
        self.first = SecondReader(self.lstm.size, lstm_size)
        self.second = SecondReader(self.lstm.size, lstm_size)
        self.size, self.token_size = self.first.size + self.second.size, 0

    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        sentences = self._states(ids_T, starts_S, sparse_grads)
        # For single sentences, the sentence attends to itself, so one architecture serves both kinds of tasks.
        return self._read(sentences, sentences)

    def reduce_pairs(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        states_TD, starts_S = self._states(ids_T, starts_S, sparse_grads)
        half = len(starts_S) // 2
        # All first sentences precede the second ones, so one cut of the states separates them.
        middle = int(starts_S[half])
        return self._read((states_TD[:middle], starts_S[: half + 1]), (states_TD[middle:], starts_S[half:] - middle))

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token of a pair, without attention. A single sentence passes through both second LSTMs."""
        layer: nn.Linear = self.map[0]  # type: ignore[assignment]
        return layer.weight.numel() + self.lstm.multiply_adds + self.first.lstm.multiply_adds

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        states = self._exported_states(ids_BL)
        return self._exported_read(states, states)

    def exported_pairs(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor) -> torch.Tensor:
        """See `Encoder`."""
        return self._exported_read(self._exported_states(ids1_BL), self._exported_states(ids2_BK))

    def _states(self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None) -> Sentences:
        # An LSTM's state changes at every step, so padding among the tokens must be removed, not masked.
        vectors_TE, starts_S = tokens_alone(self.vectors(ids_T, sparse_grads), ids_T != self.pad_id, starts_S)
        states_TD, _ = self.lstm(self.map(vectors_TE), starts_S)
        return states_TD, starts_S

    def _read(self, one: Sentences, other: Sentences) -> torch.Tensor:
        states, other_states = padded(*one), padded(*other)
        seen_NLD, seen_NKD = look(states, other_states)
        return torch.cat(
            [
                self.first(one[0], seen_NLD[states[1]], one[1]),
                self.second(other[0], seen_NKD[other_states[1]], other[1]),
            ],
            dim=1,
        )

    def _exported_states(self, ids_BL: torch.Tensor) -> Padded:
        # One more column of padding: onnxruntime leaves a product over no tokens at all as memory had it, not as zeros.
        ids_BL, lengths_B = without_gaps(functional.pad(ids_BL, (0, 1), value=self.pad_id), self.pad_id)
        states_BLD, _ = self.lstm.exported(self.map(self.vectors(ids_BL)), lengths_B)
        return states_BLD, torch.arange(ids_BL.shape[1]) < lengths_B.unsqueeze(1)

    def _exported_read(self, states: Padded, other: Padded) -> torch.Tensor:
        seen_BLD, seen_BKD = look(states, other)
        return torch.cat([self.first.exported(states, seen_BLD), self.second.exported(other, seen_BKD)], dim=1)


def look(one: Padded, other: Padded) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each token's attention to the other sentence: the mean of its states, see `attention`.

    Returns: seen_NLD for the first sentences' tokens, and seen_NKD for the second ones. 0 if the other sentence is
        empty.
    """
    of_y_NLK, of_x_NLK = attention(one, other)
    return of_y_NLK @ other[0], of_x_NLK.mT @ one[0]


def attention(one: Padded, other: Padded, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the softmax of ``scale`` X Yᵀ over each axis.

    Returns: of_y_NLK, the shares of the second sentence's tokens for each token of the first one, and of_x_NLK, the
        shares of the first one's for each token of the second one.
    """
    (x_NLD, is_x_NL), (y_NKD, is_y_NK) = one, other
    scores_NLK = x_NLD @ y_NKD.mT * scale
    # Padding is masked before both softmaxes, otherwise a pair's result would depend on its batch.
    of_x_NLK = shares(scores_NLK, is_x_NL.unsqueeze(2), dim=1)
    of_y_NLK = shares(scores_NLK, is_y_NK.unsqueeze(1), dim=2)
    return of_y_NLK, of_x_NLK


def shares(scores: torch.Tensor, is_token: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the softmax over the tokens of an axis, in which padding has no share.

    All shares are 0 without tokens.
    """
    # A finite minimum instead of -inf keeps the softmax of an empty sentence from being NaN.
    least = torch.finfo(scores.dtype).min
    return scores.masked_fill(~is_token, least).softmax(dim=dim) * is_token


def beside(states: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Returns [X, X - C, X * C] on the last axis."""
    return torch.cat([states, states - seen, states * seen], dim=-1)
