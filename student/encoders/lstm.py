"""The student of Tang et al. (2019): vectors, a bidirectional LSTM, and its last states.

Shapes: T tokens of all sequences end to end, U of them that are not padding, N sequences, S = N + 1 starts, E numbers
of a token, H hidden size, D = 2 H states of both directions, G = 4 H numbers of gates, M sequences that are not empty,
V vocabulary, K numbers of a start, B batch, L tokens.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from student.encoders.encoder import Encoder, remaining_starts
from student.encoders.products import SparseGrads, embedding_rows
from student.encoders.specs import Lstm
from student.model.architecture import EncoderConfig

# ONNX orders the gates input, output, forget, cell. Torch orders them input, forget, cell, output.
ONNX_GATES = (0, 3, 1, 2)


class BiLstm(nn.Module):
    """One layer, both directions.

    Args:
        num_features: E.
        hidden_size: H.
    """

    def __init__(self, num_features: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size, self.size = hidden_size, 2 * hidden_size
        self.lstm = nn.LSTM(num_features, hidden_size, bidirectional=True)

    def forward(self, features_TE: torch.Tensor, starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the states at each token, and the last states of each sequence, in both directions.

        Args:
            features_TE: float32.
            starts_S: int64. Sequence n has the tokens from ``starts_S[n]`` to ``starts_S[n + 1]``.

        Returns: states_TD, and last_ND, which is 0 for an empty sequence.
        """
        last_ND = features_TE.new_zeros(len(starts_S) - 1, self.size)
        # Torch's LSTM refuses an empty batch. Sums times 0 keep the graph, so that gradients exist and are 0.
        if not len(features_TE):
            nothing = features_TE.sum() + torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
            return features_TE.new_zeros(0, self.size) + nothing, last_ND + nothing
        order_T, order_N, sizes = packing(starts_S)
        # Packing tokens directly avoids padding and unpadding, which `pack_padded_sequence` would need.
        states, (last_2MH, _) = self.lstm(PackedSequence(features_TE[order_T], sizes.cpu()))
        last_MD = torch.cat(last_2MH.unbind(), dim=1)
        return states.data[order_T.argsort()], last_ND.index_copy(0, order_N[: len(last_MD)], last_MD)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token."""
        return sum(p.numel() for name, p in self.lstm.named_parameters() if name.startswith("weight"))

    def exported(self, features_BLE: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns states_BLD and last_BD by ONNX's own operator, because torch cannot export packed sequences.

        See `forward`.

        Args:
            features_BLE: float32, padded at the end.
            lengths_B: int64.
        """
        batch_size, length, _ = features_BLE.shape
        weights = {name: p.detach() for name, p in self.lstm.named_parameters()}
        ways = ("", "_reverse")
        input_2GE = torch.stack([self._gates(weights[f"weight_ih_l0{way}"]) for way in ways])
        hidden_2GH = torch.stack([self._gates(weights[f"weight_hh_l0{way}"]) for way in ways])
        biases = [[self._gates(weights[f"bias_{part}_l0{way}"]) for part in ("ih", "hh")] for way in ways]
        bias_2G = torch.stack([torch.cat(both) for both in biases])
        states_L2BH, last_2BH = torch.onnx.ops.symbolic_multi_out(
            "LSTM",
            # ONNX's LSTM takes the length first and the true lengths as 32-bit integers.
            (features_BLE.transpose(0, 1), input_2GE, hidden_2GH, bias_2G, lengths_B.int()),
            {"direction": "bidirectional", "hidden_size": self.hidden_size},
            dtypes=(torch.float32, torch.float32),
            shapes=((length, 2, batch_size, self.hidden_size), (2, batch_size, self.hidden_size)),
            version=14,
        )
        return states_L2BH.permute(2, 0, 1, 3).flatten(2), last_2BH.transpose(0, 1).flatten(1)

    def _gates(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows of four gates in ONNX's order."""
        return rows.reshape(len(ONNX_GATES), self.hidden_size, -1)[list(ONNX_GATES)].reshape(rows.shape)


def packing(starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the order of packed sequences: the first tokens of all, then the second ones, longer sequences first.

    Returns: The tokens in that order, int64 [T], the sequences by falling length, int64 [N], and how many sequences
        have a first token, a second one and so on, int64.
    """
    lengths_N = starts_S.diff()
    # Packed sequences require falling lengths. A stable order keeps equal lengths as they came.
    order_N = lengths_N.argsort(descending=True, stable=True)
    sequence_T = torch.arange(len(lengths_N), device=starts_S.device).repeat_interleave(lengths_N)
    place_T = torch.arange(len(sequence_T), device=starts_S.device) - starts_S[sequence_T]
    rank_T = order_N.argsort()[sequence_T]
    # One integer per token orders by position first and by sequence second.
    return (place_T * len(lengths_N) + rank_T).argsort(), order_N, place_T.bincount()


def without_gaps(ids_BL: torch.Tensor, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns padded ids with all padding at the end, and the number of tokens of each sequence, int64 [B].

    Can be exported.
    """
    is_token_BL = ids_BL != pad_id
    place_BL = torch.where(is_token_BL, is_token_BL.cumsum(1) - 1, ids_BL.shape[1])
    # The extra last column receives all padding and is cut off again. Boolean indexing could not be exported.
    room_BX = torch.full_like(torch.cat([ids_BL, ids_BL[:, :1]], dim=1), pad_id)
    return room_BX.scatter(1, place_BL, ids_BL)[:, :-1], is_token_BL.sum(dim=1)


def tokens_alone(
    features_TE: torch.Tensor, is_token_T: torch.Tensor, starts_S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns features and starts of sequences without the padding among their tokens."""
    if bool(is_token_T.all()):
        return features_TE, starts_S
    return features_TE[is_token_T], remaining_starts(is_token_T, starts_S)


# Vectors are drawn from -0.25 to 0.25, which has the variance of word2vec's vectors (Kim 2014).
UNKNOWN = 0.25


class Vectors(nn.Module):
    """The vectors of tokens in a trained table. With two channels, also those in a frozen table.

    The padding's vectors are 0 and do not change.
    """

    def __init__(self, config: EncoderConfig, channels: int = 1) -> None:
        super().__init__()
        self.pad_id, self.size = config.pad_id, channels * config.vector_size
        self.trained = nn.Embedding(config.num_tokens, config.vector_size, padding_idx=config.pad_id)
        self.frozen = nn.Embedding(*self.trained.weight.shape) if channels == 2 else None
        nn.init.uniform_(self.trained.weight, -UNKNOWN, UNKNOWN)
        with torch.no_grad():
            self.trained.weight[config.pad_id] = 0
            if self.frozen is not None:
                # Kim's multichannel starts both tables alike. One keeps the start while the other adapts to the task.
                self.frozen.weight.requires_grad_(False).copy_(self.trained.weight)

    def forward(self, ids: torch.Tensor, sparse_grads: SparseGrads | None = None) -> torch.Tensor:
        """Returns the tokens' vectors, float32, with E as the last axis. With ``sparse_grads``, the ids are ids_T."""
        trained = embedding_rows(self.trained.weight, ids, self.pad_id, sparse_grads)
        if self.frozen is None:
            return trained
        return torch.cat([functional.embedding(ids, self.frozen.weight), trained], dim=-1)

    def tables(self) -> list[nn.Embedding]:
        """The tables."""
        return [self.trained] if self.frozen is None else [self.frozen, self.trained]


class VectorEncoder(Encoder):
    """The common part of encoders that read only the tokens' vectors."""

    vectors: Vectors
    # An LSTM learns which tokens matter, so frequent ones need no shorter vectors as in a sum.
    counts_less = False
    # A uniform distribution from -a to a has this standard deviation.
    start_deviation = UNKNOWN / 3**0.5

    def tables(self) -> list[nn.Embedding]:
        """See `Encoder`."""
        return self.vectors.tables()

    def vector_table(self) -> nn.Embedding:
        """See `Encoder`."""
        return self.vectors.trained

    @torch.no_grad()
    def start_vectors(self, ids_N: torch.Tensor, start_NK: torch.Tensor) -> None:
        """See `Encoder`. Both channels have the same start."""
        super().start_vectors(ids_N, start_NK)
        if self.vectors.frozen is not None:
            self.vectors.frozen.weight[ids_N] = self.vectors.trained.weight[ids_N]

    def export_problems(self, longest: int) -> list[str]:
        """See `Encoder`."""
        return []


class LstmEncoder(VectorEncoder):
    """The last states of both directions of one layer over the tokens' vectors."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert isinstance(config.encoder, Lstm), type(config.encoder)
        self.pad_id, self.vectors = config.pad_id, Vectors(config, config.encoder.channels)
        self.lstm = BiLstm(self.vectors.size, config.encoder.lstm_size)
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
        """Returns the states of both directions at each token, states_TD. See `reduce` for the arguments."""
        is_token_T = ids_T != self.pad_id
        states_UD: torch.Tensor
        states_UD, _ = self.lstm(*tokens_alone(self.vectors(ids_T, sparse_grads), is_token_T, starts_S))
        # Padding among the tokens is skipped by the LSTM but keeps its place in the output.
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
