"""An LSTM that reads sequences of any length both ways, and no padding.

Shapes: T tokens of all sequences end to end, N sequences, S = N + 1 starts, M sequences that are not empty, E numbers
of a token, H hidden size, D = 2 H, G = 4 H numbers of gates, B batch, L tokens.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from student.model.encoder import remaining_starts

ONNX_GATES = (0, 3, 1, 2)  # input, output, forget, cell; torch has input, forget, cell, output


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
        """The states at each token, and the last ones of each sequence, of both directions.

        Args:
            features_TE: float32.
            starts_S: int64; sequence n has the tokens from ``starts_S[n]`` to ``starts_S[n + 1]``.

        Returns:
            states_TD, and last_ND, 0 of an empty sequence.
        """
        last_ND = features_TE.new_zeros(len(starts_S) - 1, self.size)
        if not len(features_TE):  # there are gradients all the same, of 0
            nothing = features_TE.sum() + torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
            return features_TE.new_zeros(0, self.size) + nothing, last_ND + nothing
        order_T, order_N, sizes = packing(starts_S)
        states, (last_2MH, _) = self.lstm(PackedSequence(features_TE[order_T], sizes.cpu()))
        last_MD = torch.cat(last_2MH.unbind(), dim=1)
        return states.data[order_T.argsort()], last_ND.index_copy(0, order_N[: len(last_MD)], last_MD)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token."""
        return sum(p.numel() for name, p in self.lstm.named_parameters() if name.startswith("weight"))

    def exported(self, features_BLE: torch.Tensor, lengths_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What `forward` returns, states_BLD and last_BD, as ONNX's own operator; torch can export no packed sequences.

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
            (features_BLE.transpose(0, 1), input_2GE, hidden_2GH, bias_2G, lengths_B.int()),
            {"direction": "bidirectional", "hidden_size": self.hidden_size},
            dtypes=(torch.float32, torch.float32),
            shapes=((length, 2, batch_size, self.hidden_size), (2, batch_size, self.hidden_size)),
            version=14,
        )
        return states_L2BH.permute(2, 0, 1, 3).flatten(2), last_2BH.transpose(0, 1).flatten(1)

    def _gates(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of four gates in ONNX's order."""
        return rows.reshape(len(ONNX_GATES), self.hidden_size, -1)[list(ONNX_GATES)].reshape(rows.shape)


def packing(starts_S: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How sequences end to end are packed: the first tokens of all, then the second ones, longer sequences first.

    Returns:
        The tokens in that order, int64 [T]; the sequences by falling length, int64 [N]; and how many sequences have a
        first token, a second one and so on, int64.
    """
    lengths_N = starts_S.diff()
    order_N = lengths_N.argsort(descending=True, stable=True)
    sequence_T = torch.arange(len(lengths_N), device=starts_S.device).repeat_interleave(lengths_N)
    place_T = torch.arange(len(sequence_T), device=starts_S.device) - starts_S[sequence_T]
    rank_T = order_N.argsort()[sequence_T]
    return (place_T * len(lengths_N) + rank_T).argsort(), order_N, place_T.bincount()


def without_gaps(ids_BL: torch.Tensor, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids with all padding at the end, and how many tokens each sequence has, int64 [B]; can be exported."""
    is_token_BL = ids_BL != pad_id
    place_BL = torch.where(is_token_BL, is_token_BL.cumsum(1) - 1, ids_BL.shape[1])
    room_BX = torch.full_like(torch.cat([ids_BL, ids_BL[:, :1]], dim=1), pad_id)  # the last column is for the padding
    return room_BX.scatter(1, place_BL, ids_BL)[:, :-1], is_token_BL.sum(dim=1)


def tokens_alone(
    features_TE: torch.Tensor, is_token_T: torch.Tensor, starts_S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and starts of sequences without padding that stands among their tokens."""
    if bool(is_token_T.all()):
        return features_TE, starts_S
    return features_TE[is_token_T], remaining_starts(is_token_T, starts_S)
