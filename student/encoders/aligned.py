"""A student of pairs without layers: each token is compared with what it is aligned with in the other sentence.

`student.kernels.native_sequences` aligns and pools float32 on a CPU. Elsewhere, without a compiler, and in the graph
that is exported, the methods for padded arrays do.

A token is aligned with the mean of the other sentence's tokens, weighted by attention (the decomposable attention of
Parikh et al. 2016, without networks before the attention). What is compared are contextual vectors: a token's own plus
parts of its two neighbours', so that comparisons depend on the order of words.

Shapes: T tokens of all sentences end to end, S = N + 1 starts, N sentences or pairs, B batch, L and K tokens of the
first and the second sentence, E numbers of a token's vector, D = 2 E of its vector and its contextual vector side by
side, H numbers of a comparison, X rows of an array.
"""

import torch
from torch import nn
from torch.nn import functional

from student.encoders.biattentive import Padded, Sentences, attention
from student.encoders.encoder import Encoder, padded
from student.encoders.lstm import VectorEncoder, Vectors, tokens_alone, without_gaps
from student.encoders.products import SparseGrads
from student.kernels import native_sequences
from student.kernels.native import can_do
from student.model.architecture import EncoderConfig

# More pairs would share less similar sizes, and fewer ones would wait for Python.
PAIRS_AT_ONCE = 32

# Arrays of the first and of the second sentences.
Both = tuple[torch.Tensor, torch.Tensor]


class AlignedEncoder(VectorEncoder):
    """Normalised vectors, attention of each token to the other sentence, and pooled comparisons of contextual vectors.

    A single sentence is read as a pair with itself.
    """

    # Frequent tokens start shorter, as in sums: a step then turns their normalised vectors further.
    counts_less = True
    start_deviation = Encoder.start_deviation

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.vector_size
        self.pad_id, self.vectors = config.pad_id, Vectors(config)
        # Equal tokens must attend to each other from the first step on: without it, MNLI loses ten points.
        self.norm = nn.LayerNorm(width)
        # A factor per number of the previous token and of the next one. Without them, comparisons do not see the order
        # of words. Training starts without neighbours.
        self.neighbours = nn.Parameter(torch.zeros(2, width))
        # Comparisons as wide as the vectors took twice as long and scored no better.
        self.compare = nn.Linear(4 * width, (width + 1) // 2)
        # Dot products of normalised vectors have this deviation, as in a transformer.
        self.scale = width**-0.5
        self.size, self.token_size = 4 * self.compare.out_features, 0

    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        return self._read(*self._sentences(ids_T, starts_S, sparse_grads), num_pairs=len(starts_S) - 1)

    def reduce_pairs(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        return self._read(*self._sentences(ids_T, starts_S, sparse_grads), num_pairs=(len(starts_S) - 1) // 2)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token, without attention."""
        return self.compare.weight.numel() + self.neighbours.numel()

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        sentences = self._exported_sentences(ids_BL)
        return self._exported_read(sentences, sentences)

    def exported_pairs(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor) -> torch.Tensor:
        """See `Encoder`."""
        return self._exported_read(self._exported_sentences(ids1_BL), self._exported_sentences(ids2_BK))

    def _sentences(self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None) -> Sentences:
        vectors_TE = self.norm(self.vectors(ids_T, sparse_grads))
        # Neighbours are the tokens that remain without the padding.
        vectors_TE, starts_S = tokens_alone(vectors_TE, ids_T != self.pad_id, starts_S)
        is_start_T1 = torch.zeros(len(vectors_TE) + 1, 1, dtype=torch.bool, device=vectors_TE.device)
        is_start_T1[starts_S] = True
        # The token before a sentence's first one, and after its last one, belongs to another sentence.
        around_XE = functional.pad(vectors_TE, (0, 0, 1, 1))
        previous_TE = around_XE[:-2].masked_fill(is_start_T1[:-1], 0)
        next_TE = around_XE[2:].masked_fill(is_start_T1[1:], 0)
        return self._beside_contextual(vectors_TE, previous_TE, next_TE), starts_S

    def _beside_contextual(
        self, vectors: torch.Tensor, previous: torch.Tensor, following: torch.Tensor
    ) -> torch.Tensor:
        """Returns vectors and contextual vectors side by side on the last axis: D numbers."""
        of_previous_E, of_next_E = self.neighbours
        return torch.cat([vectors, vectors + of_previous_E * previous + of_next_E * following], dim=-1)

    def _read(self, vectors_TD: torch.Tensor, starts_S: torch.Tensor, num_pairs: int) -> torch.Tensor:
        """Returns the features of the first sentences and the last ones. With N pairs, each is beside itself."""
        if can_do(vectors_TD):
            inputs_TF = native_sequences.align(vectors_TD, starts_S, num_pairs, self.scale)
            pooled_NX = native_sequences.pool(self.compare(inputs_TF), starts_S)
            return torch.cat([pooled_NX[:num_pairs], pooled_NX[len(pooled_NX) - num_pairs :]], dim=1)
        return self._read_padded(vectors_TD, starts_S, num_pairs)

    def _read_padded(self, vectors_TD: torch.Tensor, starts_S: torch.Tensor, num_pairs: int) -> torch.Tensor:
        """Returns the result of `_read` in plain torch."""
        lengths = starts_S.diff()
        number_N = torch.arange(len(lengths), device=starts_S.device)
        firsts_N, seconds_N = number_N[:num_pairs], number_N[len(lengths) - num_pairs :]
        # Padding costs as much as tokens, so pairs of similar sizes share an array.
        order_N = (lengths[firsts_N] * lengths[seconds_N]).argsort(stable=True)
        # Without any token there is still a row to read, so that the graph of gradients is complete.
        rows_XD = vectors_TD if len(vectors_TD) else functional.pad(vectors_TD, (0, 0, 0, 1))
        parts = [
            self._aligned(rows_XD, [(starts_S[side][some], lengths[side][some]) for side in (firsts_N, seconds_N)])
            for some in torch.split(order_N, PAIRS_AT_ONCE)
        ]
        return torch.cat(parts)[order_N.argsort()]

    def _aligned(self, rows_XD: torch.Tensor, sides: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Returns the features of a few pairs, from the starts and the lengths of their first and second sentences."""
        one, other = (_padded_rows(rows_XD, *side) for side in sides)
        own, seen = self._own_and_seen(one, other)
        # Comparisons are the widest arrays, so they are computed without padding.
        own_TE, seen_TE = (torch.cat([part[0][one[1]], part[1][other[1]]]) for part in (own, seen))
        starts_S = functional.pad(torch.cat([lengths_B for _, lengths_B in sides]).cumsum(0), (1, 0))
        compared_NLH, _ = padded(self._compared(own_TE, seen_TE), starts_S)
        return torch.cat(pooled(compared_NLH).chunk(2), dim=1)

    def _own_and_seen(self, one: Padded, other: Padded) -> tuple[Both, Both]:
        """Returns the contextual vectors of both sentences, and those that their tokens are aligned with."""
        (x_NLE, own_NLE), (y_NKE, own_NKE) = one[0].chunk(2, dim=2), other[0].chunk(2, dim=2)
        # Attention is between the tokens' own vectors: equal tokens find each other whatever stands beside them.
        of_y_NLK, of_x_NLK = attention((x_NLE, one[1]), (y_NKE, other[1]), self.scale)
        return (own_NLE, own_NKE), (of_y_NLK @ own_NKE, of_x_NLK.mT @ own_NLE)

    def _exported_sentences(self, ids_BL: torch.Tensor) -> Padded:
        # One more column of padding: onnxruntime leaves a product over no tokens at all as memory had it, not as zeros.
        ids_BL, lengths_B = without_gaps(functional.pad(ids_BL, (0, 1), value=self.pad_id), self.pad_id)
        is_token_BL = torch.arange(ids_BL.shape[1]) < lengths_B.unsqueeze(1)
        # Padding is a neighbour, too, and the norm's bias would be its vector.
        vectors_BLE = self.norm(self.vectors(ids_BL)) * is_token_BL.unsqueeze(2)
        around_BXE = functional.pad(vectors_BLE, (0, 0, 1, 1))
        return self._beside_contextual(vectors_BLE, around_BXE[:, :-2], around_BXE[:, 2:]), is_token_BL

    def _exported_read(self, one: Padded, other: Padded) -> torch.Tensor:
        own, seen = self._own_and_seen(one, other)
        first_BLH = self._compared(own[0], seen[0]) * one[1].unsqueeze(2)
        second_BKH = self._compared(own[1], seen[1]) * other[1].unsqueeze(2)
        return torch.cat([pooled(first_BLH), pooled(second_BKH)], dim=1)

    def _compared(self, own: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Returns relu(W [x, c, x * c, |x - c|]) on the last axis."""
        return self.compare(torch.cat([own, seen, own * seen, (own - seen).abs()], dim=-1)).relu()  # type: ignore[no-any-return]


def _padded_rows(rows_XD: torch.Tensor, starts_N: torch.Tensor, lengths_N: torch.Tensor) -> Padded:
    """Returns padded sentences and which positions have tokens. Other positions have any row."""
    position_L = torch.arange(max(1, int(lengths_N.max())), device=rows_XD.device)
    rows_NL = (starts_N.unsqueeze(1) + position_L).clamp(max=len(rows_XD) - 1)
    return functional.embedding(rows_NL, rows_XD), position_L < lengths_N.unsqueeze(1)


def pooled(compared_NLH: torch.Tensor) -> torch.Tensor:
    """Returns the sums and the maxima of the tokens' comparisons, [N, 2 H]. Padding is 0, and none is below 0."""
    return torch.cat([compared_NLH.sum(dim=1), compared_NLH.amax(dim=1)], dim=1)
