"""A student of pairs without layers: each token is compared with what it is aligned with in the other sentence.

A token is aligned with the mean of the other sentence's tokens, weighted by attention (the decomposable attention of
Parikh et al. 2016, without networks before the attention).

Shapes: T tokens of all sentences end to end, S = N + 1 starts, N sentences or pairs, B batch, L and K tokens of the
first and the second sentence, E numbers of a token's vector, H numbers of a comparison, X rows of an
array.
"""

import torch
from torch import nn
from torch.nn import functional

from student.model.biattentive import Padded, Sentences, look
from student.model.encoder import Encoder, EncoderShape, padded
from student.model.lstm import VectorEncoder, Vectors, tokens_alone
from student.model.products import SparseGrads

# More pairs would share less similar sizes, and fewer ones would wait for Python.
PAIRS_AT_ONCE = 32


class AlignedEncoder(VectorEncoder):
    """Normalised vectors, attention of each token to the other sentence, and pooled comparisons of both.

    A single sentence is read as a pair with itself.
    """

    # Frequent tokens start shorter, as in sums: a step then turns their normalised vectors further.
    counts_less = True
    start_deviation = Encoder.start_deviation

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.pad_id, self.vectors = shape.pad_id, Vectors(shape, channels=1)
        # Equal tokens must attend to each other from the first step on: without it, MNLI loses ten points.
        self.norm = nn.LayerNorm(shape.vector_size)
        # Comparisons as wide as the vectors took twice as long and scored no better.
        self.compare = nn.Linear(4 * shape.vector_size, (shape.vector_size + 1) // 2)
        # Dot products of normalised vectors have this deviation, as in a transformer.
        self.scale = shape.vector_size**-0.5
        self.size, self.token_size = 4 * self.compare.out_features, 0

    def reduce(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        all_N = torch.arange(len(starts_S) - 1, device=starts_S.device)
        return self._read(*self._sentences(ids_T, starts_S, sparse_grads), all_N, all_N)

    def reduce_pairs(
        self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None = None
    ) -> torch.Tensor:
        """See `Encoder`."""
        firsts_B, seconds_B = torch.arange(len(starts_S) - 1, device=starts_S.device).chunk(2)
        return self._read(*self._sentences(ids_T, starts_S, sparse_grads), firsts_B, seconds_B)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per token, without attention."""
        return self.compare.weight.numel()

    def exported(self, ids_BL: torch.Tensor, longest: int) -> torch.Tensor:
        """See `Encoder`."""
        sentences = self._exported_sentences(ids_BL)
        return self._exported_read(sentences, sentences)

    def exported_pairs(self, ids1_BL: torch.Tensor, ids2_BK: torch.Tensor) -> torch.Tensor:
        """See `Encoder`."""
        return self._exported_read(self._exported_sentences(ids1_BL), self._exported_sentences(ids2_BK))

    def _sentences(self, ids_T: torch.Tensor, starts_S: torch.Tensor, sparse_grads: SparseGrads | None) -> Sentences:
        vectors_TE = self.norm(self.vectors(ids_T, sparse_grads))
        return tokens_alone(vectors_TE, ids_T != self.pad_id, starts_S)

    def _read(
        self, vectors_TE: torch.Tensor, starts_S: torch.Tensor, firsts_N: torch.Tensor, seconds_N: torch.Tensor
    ) -> torch.Tensor:
        """Returns the features of pairs of these sentences."""
        lengths = starts_S.diff()
        # Padding costs as much as tokens, so pairs of similar sizes share an array.
        order_N = (lengths[firsts_N] * lengths[seconds_N]).argsort(stable=True)
        # Without any token there is still a row to read, so that the graph of gradients is complete.
        rows_XE = vectors_TE if len(vectors_TE) else functional.pad(vectors_TE, (0, 0, 0, 1))
        parts = [
            self._aligned(rows_XE, [(starts_S[side][some], lengths[side][some]) for side in (firsts_N, seconds_N)])
            for some in torch.split(order_N, PAIRS_AT_ONCE)
        ]
        return torch.cat(parts)[order_N.argsort()]

    def _aligned(self, rows_XE: torch.Tensor, sides: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Returns the features of a few pairs, from the starts and the lengths of their first and second sentences."""
        one, other = (_padded_rows(rows_XE, *side) for side in sides)
        seen = look(one, other, self.scale)
        # Comparisons are the widest arrays, so they are computed without padding.
        own_TE, seen_TE = (torch.cat([part[0][one[1]], part[1][other[1]]]) for part in ((one[0], other[0]), seen))
        starts_S = functional.pad(torch.cat([lengths_B for _, lengths_B in sides]).cumsum(0), (1, 0))
        compared_NLH, _ = padded(self._compared(own_TE, seen_TE), starts_S)
        return torch.cat(pooled(compared_NLH).chunk(2), dim=1)

    def _exported_sentences(self, ids_BL: torch.Tensor) -> Padded:
        # One more column of padding: onnxruntime leaves a product over no tokens at all as memory had it, not as zeros.
        ids_BL = functional.pad(ids_BL, (0, 1), value=self.pad_id)
        return self.norm(self.vectors(ids_BL)), ids_BL != self.pad_id

    def _exported_read(self, one: Padded, other: Padded) -> torch.Tensor:
        seen_BLE, seen_BKE = look(one, other, self.scale)
        first_BLH = self._compared(one[0], seen_BLE) * one[1].unsqueeze(2)
        second_BKH = self._compared(other[0], seen_BKE) * other[1].unsqueeze(2)
        return torch.cat([pooled(first_BLH), pooled(second_BKH)], dim=1)

    def _compared(self, own: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Returns relu(W [x, c, x * c, |x - c|]) on the last axis."""
        return self.compare(torch.cat([own, seen, own * seen, (own - seen).abs()], dim=-1)).relu()  # type: ignore[no-any-return]


def _padded_rows(rows_XE: torch.Tensor, starts_N: torch.Tensor, lengths_N: torch.Tensor) -> Padded:
    """Returns padded sentences and which positions have tokens. Other positions have any row."""
    position_L = torch.arange(max(1, int(lengths_N.max())), device=rows_XE.device)
    rows_NL = (starts_N.unsqueeze(1) + position_L).clamp(max=len(rows_XE) - 1)
    return functional.embedding(rows_NL, rows_XE), position_L < lengths_N.unsqueeze(1)


def pooled(compared_NLH: torch.Tensor) -> torch.Tensor:
    """Returns the sums and the maxima of the tokens' comparisons, [N, 2 H]. Padding is 0, and none is below 0."""
    return torch.cat([compared_NLH.sum(dim=1), compared_NLH.amax(dim=1)], dim=1)
