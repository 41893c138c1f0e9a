"""A student that reads words in order at the cost of a sum: an element-wise recurrence in both directions.

h_t = tanh(A x_t + a) * h_(t-1) + B x_t + b, where x_t is the normalised vector of a token. Each number of a state has
its own past, as in quasi-recurrent networks (Bradbury et al. 2017) and simple recurrent units (Lei et al. 2018), whose
gates are above 0. Gates below 0 change the sign of what was read before, as a negation does. Gates and values depend on
a token alone, so they need to be computed only once for each token of a vocabulary.

`student.kernels.native_sequences` computes float32 on a CPU. Elsewhere, without a compiler, and in the graph that is
exported, the methods for padded arrays do.

Shapes: T tokens of all sequences end to end, N sequences, S = N + 1 starts, B batch, L tokens, E numbers of a token's
vector, H of a state, D = 2 H of both ways side by side, F features, U different tokens.
"""

import torch
from torch import nn
from torch.nn import functional

from student.encoders.encoder import Encoder, padded
from student.encoders.lstm import VectorEncoder, Vectors, tokens_alone, without_gaps
from student.encoders.products import SparseGrads, reduce
from student.encoders.specs import Recurrent
from student.kernels import native_sequences
from student.kernels.native import can_do
from student.kernels.reference import largest
from student.model.architecture import EncoderConfig


class RecurrentEncoder(VectorEncoder):
    """[sum and maxima of vectors, last state, maxima and minima of the states, both of each way]."""

    # Frequent tokens start shorter, as in sums, which are among the features.
    counts_less = True
    start_deviation = Encoder.start_deviation

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert isinstance(config.encoder, Recurrent), type(config.encoder)
        width, self.state_size = config.encoder.vector_size, config.encoder.state_size
        self.pad_id, self.vectors = config.pad_id, Vectors(config)
        self.norm = nn.LayerNorm(width)
        self.gate, self.value = (nn.Linear(width, 2 * self.state_size) for _ in range(2))
        # Training starts with long memories: tanh(1) is 0.76.
        nn.init.ones_(self.gate.bias)
        self.size, self.token_size = 2 * width + 6 * self.state_size, 0

    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        vectors_TE, is_token_T = self.vectors(ids_T, sparse_grads), ids_T != self.pad_id
        vectors_TE, starts_S = tokens_alone(vectors_TE, is_token_T, starts_S)
        places_T = torch.arange(len(vectors_TE), device=ids_T.device)
        # Kernels refuse a table without rows.
        rows_XE = vectors_TE if len(vectors_TE) else functional.pad(vectors_TE, (0, 0, 0, 1))
        sums_NX = reduce((rows_XE, None, None), places_T, starts_S, with_max=True)
        gates_TD, values_TD = self._steps_of(ids_T[is_token_T], vectors_TE)
        if can_do(gates_TD):
            return torch.cat([sums_NX, native_sequences.recur(gates_TD, values_TD, starts_S)], dim=1)
        gates_NLD, is_token_NL = padded(gates_TD, starts_S)
        # One round more than single tokens need keeps the gates in the graph of gradients.
        pooled_NF = _pooled_padded(gates_NLD, padded(values_TD, starts_S)[0], is_token_NL, gates_NLD.shape[1] + 1)
        return torch.cat([sums_NX, pooled_NF], dim=1)

    def steps(self, vectors_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the gates and the values of tokens with these vectors, gates_TD and values_TD."""
        normal_TE = self.norm(vectors_TE)
        return self.gate(normal_TE).tanh(), self.value(normal_TE)

    def _steps_of(self, ids_T: torch.Tensor, vectors_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the result of `steps`, computed once for each token of a batch."""
        # Texts repeat their words, and these products take most of a step. Any place of a token will do, because equal
        # tokens have equal vectors.
        found_U, place_T = ids_T.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        any_U = torch.empty_like(found_U).scatter_(0, place_T, torch.arange(len(ids_T), device=ids_T.device))
        gates_UD, values_UD = self.steps(vectors_TE[any_U])
        return gates_UD[place_T], values_UD[place_T]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token. Those of gates and values are done once for all places of a token."""
        return 2 * self.gate.weight.numel() + self.gate.out_features

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        # One more column of padding: a product over no tokens at all would not be defined.
        ids_BL, lengths_B = without_gaps(functional.pad(ids_BL, (0, 1), value=self.pad_id), self.pad_id)
        is_token_BL = torch.arange(ids_BL.shape[1]) < lengths_B.unsqueeze(1)
        vectors_BLE = self.vectors(ids_BL)
        gates_BLD, values_BLD = self.steps(vectors_BLE)
        pooled_BF = _pooled_padded(gates_BLD, values_BLD, is_token_BL, longest + 1)
        return torch.cat([vectors_BLE.sum(dim=1), largest(vectors_BLE, is_token_BL), pooled_BF], dim=1)


def _pooled_padded(
    gates_NLD: torch.Tensor, values_NLD: torch.Tensor, is_token_NL: torch.Tensor, longest: int
) -> torch.Tensor:
    """Returns pooled_NF of `native_sequences.recur`, for sequences padded at their ends."""
    is_token_NL1 = is_token_NL.unsqueeze(2)
    # The step of padding changes no state.
    gates_NLD, values_NLD = gates_NLD.where(is_token_NL1, 1), values_NLD * is_token_NL1
    ways = zip(gates_NLD.chunk(2, dim=2), values_NLD.chunk(2, dim=2), (False, True), strict=True)
    pooled = []
    for gates_NLH, step_NLH, is_back in ways:
        states_NLH = _states(gates_NLH, step_NLH, is_back, longest)
        # In the padding behind a sequence, the way there still has its last state, and the way back has not begun.
        pooled.append(states_NLH[:, 0 if is_back else -1])
        pooled += [largest(states_NLH, is_token_NL), -largest(-states_NLH, is_token_NL)]
    return torch.cat(pooled, dim=1)


def _states(gates_BLH: torch.Tensor, values_BLH: torch.Tensor, is_back: bool, longest: int) -> torch.Tensor:
    """Returns the states of one way, states_BLH, for any number of tokens up to ``longest``."""
    if is_back:
        gates_BLH, values_BLH = gates_BLH.flip(1), values_BLH.flip(1)
    length, step = gates_BLH.shape[1], 1
    # This is the scan of Hillis and Steele: after k rounds, each place has done its last 2^k steps at once.
    while step < longest:
        before_BLH = functional.pad(gates_BLH, (0, 0, step, 0), value=1.0)[:, :length]
        values_BLH = gates_BLH * functional.pad(values_BLH, (0, 0, step, 0))[:, :length] + values_BLH
        gates_BLH = gates_BLH * before_BLH
        step *= 2
    return values_BLH.flip(1) if is_back else values_BLH
