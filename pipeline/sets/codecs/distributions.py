"""The codecs of distributions: lossless ones (``dense`` and ``hidden``), and some tokens (``sampled`` and ``topk``).

``dense`` stores every log-probability in float16, 61 kB per position for BERT: the reference for the other codecs.
``hidden`` stores the decoder's input in float16, and the decoder once per set: exact at any temperature without the
teacher. It takes about 1.4 bytes per number, which is 530 per position with 384 numbers.

``sampled`` stores N draws from the teacher's distribution at a temperature: token ids and their counts. In expectation,
a student trained on the shares of the draws gets the gradient of the full distribution (Sparse Logit Sampling,
Anshumann et al. 2025). With the K most likely tokens it does not. The draws are systematic: one random number per
position, and N points at equal distances of 1/N from it. A token's count has the expectation N p, as with independent
draws, but is never further from it than 1.

``topk`` stores the K most likely tokens with their log-probabilities and log Z, so that the mass of the tail is known.
The tail is one more class, with a known sum and unknown details, and only at temperature 1. Without it a student would
learn to be overconfident.

Shapes: P positions, V vocabulary, N draws, G groups of W tokens, E distinct tokens drawn, K candidates.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from pipeline.arrays import id_type
from pipeline.sets.codecs.codec import (
    Codec,
    Columns,
    Decoder,
    Dense,
    Predictions,
    Sparse,
    from_half_bits,
    half_bits,
    lists,
    not_finite,
    rectangle,
    unknown_id,
    wrong_width,
)
from pipeline.sets.record_parts import MAX_VOCABULARY

if TYPE_CHECKING:
    import torch

# Two-level search: with 30,522 tokens 239 group sums are accumulated, then 128 tokens for each draw.
GROUP = 128


class SampledCodec(Codec):
    """Columns ``candidates`` (the drawn ids, ascending) and ``counts`` (how often each was drawn).

    Attributes:
        num_samples: N.
        temperature: the temperature of the sampled distribution, the only one that can be decoded.
    """

    card_line: ClassVar[str] = (
        "| `candidates`, `counts` | the ids that were drawn from the teacher's distribution, and how often |"
    )

    name: Literal["sampled"] = "sampled"
    # A count is stored in one byte.
    num_samples: int = Field(ge=1, le=255)
    temperature: float = Field(gt=0)

    def __str__(self) -> str:
        return f"{self.name}-{self.num_samples}" + (f" at T={self.temperature:g}" if self.temperature != 1 else "")

    def fields(self) -> dict[str, pa.DataType]:
        return {"candidates": pa.list_(id_type(self.vocabulary_size)), "counts": pa.list_(pa.uint8())}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        import torch

        # The draws come sorted, so equal tokens are neighbours and counting needs no sort.
        probability_PV = _probabilities(predictions, self.temperature)
        drawn_PN = draw(probability_PV, predictions.random_P, self.num_samples)
        first_PN = torch.ones_like(drawn_PN, dtype=torch.bool)
        first_PN[:, 1:] = drawn_PN[:, 1:] != drawn_PN[:, :-1]
        starts_E = first_PN.flatten().nonzero().squeeze(1)
        counts_E = torch.diff(starts_E, append=starts_E.new_tensor([drawn_PN.numel()]))
        kept_P = first_PN.sum(dim=1).cpu().numpy()
        mass_P = (probability_PV.gather(1, drawn_PN) * first_PN).sum(dim=1)
        columns = {
            "candidates": lists(drawn_PN[first_PN].cpu().numpy(), kept_P, id_type(self.vocabulary_size)),
            "counts": lists(counts_E.cpu().numpy(), kept_P, pa.uint8()),
        }
        return columns, mass_P

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Sparse:
        import torch

        candidates, counts = columns["candidates"], columns["counts"]
        lengths_P = np.diff(candidates.offsets.to_numpy())
        position_E = np.repeat(np.arange(len(candidates)), lengths_P)
        token_E = candidates.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        drawn_E = counts.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        return Sparse(
            torch.from_numpy(position_E),
            torch.from_numpy(token_E),
            torch.from_numpy(drawn_E / np.float32(self.num_samples)),
            # No rest: the shares of the draws already sum to 1 and estimate the whole distribution without bias.
            torch.zeros(len(candidates)),
        )

    def problem(self, columns: Columns) -> str | None:
        candidates, counts = columns["candidates"], columns["counts"]
        lengths_P = pc.list_value_length(candidates).to_numpy()
        if not np.array_equal(lengths_P, pc.list_value_length(counts).to_numpy()) or not lengths_P.all():
            return "candidates and counts have different lengths"
        drawn_E = counts.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        starts_P = np.cumsum(lengths_P) - lengths_P
        if (np.add.reduceat(drawn_E, starts_P) != self.num_samples).any():
            return f"the sum of a position's counts is not {self.num_samples}"
        return unknown_id(self.vocabulary_size, candidates)

    @property
    def stored_temperature(self) -> float:
        return self.temperature

    def num_bytes(self) -> float:
        # A fit to measured sizes: likely tokens are drawn repeatedly, so distinct ids grow more slowly than draws.
        return float(3 * self.num_samples**0.73)

    def candidates_sql(self) -> tuple[str, str]:
        return "candidates", f"list_transform(counts, lambda x: x / {self.num_samples})"


def _probabilities(predictions: Predictions, temperature: float) -> "torch.Tensor":
    """The distributions, with zeros after the vocabulary that fill up the last group."""
    import torch

    num_positions, vocabulary_size = predictions.logits_PV.shape
    whole = predictions.logits_PV.new_zeros(num_positions, vocabulary_size + -vocabulary_size % GROUP)
    probability_PV = whole[:, :vocabulary_size]
    if temperature == 1:
        # Writing into the padded array in place avoids two copies of the largest array of the dump.
        torch.sub(predictions.logits_PV, predictions.log_z_P[:, None], out=probability_PV).exp_()
    else:
        probability_PV.copy_((predictions.logits_PV / temperature).softmax(dim=1))
    return whole


def draw(probability_PV: "torch.Tensor", random_P: "torch.Tensor", num_samples: int) -> "torch.Tensor":
    """Draws systematically: a token is drawn for each point (k + random) / N in its part of the cumulated distribution.

    Groups of tokens are cumulated first, and then only the groups with a point, which saves most of the work.

    Returns:
        token_PN, int64, ascending.
    """
    import torch
    from torch.nn.functional import pad

    vocabulary_size = probability_PV.shape[1]
    if vocabulary_size % GROUP:
        probability_PV = pad(probability_PV, (0, -vocabulary_size % GROUP))
    groups_PGW = probability_PV.view(len(probability_PV), -1, GROUP)
    # float64, because float32 sums over 30,000 tokens are off by more than the probability of a rare token.
    group_PG = groups_PGW.sum(dim=2).double()
    upto_PG = group_PG.cumsum(dim=1)
    points_PN = (torch.arange(num_samples, device=random_P.device) + random_P[:, None]) / num_samples
    # Scaling by the actual sum corrects its rounding error. The clamp keeps the last point below the end.
    points_PN = points_PN.clamp(max=1 - 1e-12) * upto_PG[:, -1:]
    chosen_PN = torch.searchsorted(upto_PG, points_PN, right=True).clamp(max=upto_PG.shape[1] - 1)
    left_PN = points_PN - (upto_PG - group_PG).gather(1, chosen_PN)
    rows_P1 = torch.arange(len(points_PN), device=points_PN.device)[:, None]
    upto_PNW = groups_PGW[rows_P1, chosen_PN].double().cumsum(dim=2)
    # Rounding can put a point past the sum of its group. It then belongs to the group's last token with probability.
    left_PN = torch.minimum(left_PN, upto_PNW[..., -1] * (1 - 1e-12))
    within_PN = torch.searchsorted(upto_PNW, left_PN[..., None], right=True).squeeze(2)
    return (chosen_PN * GROUP + within_PN).clamp(max=vocabulary_size - 1)


class TopKCodec(Codec):
    """Columns ``candidates``, the most likely ids first, and ``log_probs`` and ``log_z`` as in `DenseCodec`.

    Attributes:
        top_k: K. At temperatures other than 1, the mass of the tail depends on tokens that are not stored.
    """

    card_line: ClassVar[str] = (
        "| `candidates`, `log_probs`, `log_z` | the most likely ids, bits of float16 of their "
        "log-probabilities. The logit is log_prob + log_z |"
    )

    name: Literal["topk"] = "topk"
    top_k: int = Field(ge=1, le=MAX_VOCABULARY)

    def __str__(self) -> str:
        return f"{self.name}-{self.top_k}"

    def fields(self) -> dict[str, pa.DataType]:
        ids = pa.list_(id_type(self.vocabulary_size))
        return {"candidates": ids, "log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        log_z_P = predictions.log_z_P
        best_PK, token_PK = predictions.logits_PV.topk(self.top_k, dim=1)
        # log Z over the whole vocabulary, not over the K kept tokens: their sum then shows how much mass the tail has.
        log_probs_PK = best_PK - log_z_P[:, None]
        counts_P = np.full(len(log_z_P), self.top_k)
        columns = {
            "candidates": lists(token_PK.cpu().numpy().ravel(), counts_P, id_type(self.vocabulary_size)),
            "log_probs": lists(half_bits(log_probs_PK).ravel(), counts_P, pa.uint16()),
            "log_z": pa.array(log_z_P.cpu().numpy()),
        }
        return columns, log_probs_PK.exp().sum(dim=1)

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Sparse:
        import torch

        probability_PK = from_half_bits(columns["log_probs"]).exp()
        token_PK = torch.from_numpy(rectangle(columns["candidates"], np.int64))
        position_PK = torch.arange(len(token_PK))[:, None].expand_as(token_PK)
        # Rounding to float16 can push the sum of the kept probabilities slightly above 1.
        rest_P = (1 - probability_PK.sum(dim=1)).clamp(min=0)
        return Sparse(position_PK.flatten(), token_PK.flatten(), probability_PK.flatten(), rest_P)

    def problem(self, columns: Columns) -> str | None:
        return (
            wrong_width(columns["candidates"], self.top_k)
            or wrong_width(columns["log_probs"], self.top_k)
            or not_finite(columns, "log_probs", "log_z")
            or unknown_id(self.vocabulary_size, columns["candidates"])
        )

    def num_bytes(self) -> float:
        return 2.85 * self.top_k + 8

    def candidates_sql(self) -> tuple[str, str]:
        return "candidates", "list_transform(log_probs, lambda x: exp(half(x)))"


class DenseCodec(Codec):
    """Columns ``log_probs`` and ``log_z``, in float16 bits: logit = log_prob + log_z."""

    card_line: ClassVar[str] = (
        "| `log_probs`, `log_z` | bits of float16: every log-probability. The logit is log_prob + log_z |"
    )
    is_lossless: ClassVar[bool] = True

    name: Literal["dense"] = "dense"

    def fields(self) -> dict[str, pa.DataType]:
        return {"log_probs": pa.list_(pa.uint16()), "log_z": pa.float32()}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        log_z_P = predictions.log_z_P
        # Log-probabilities near 0 belong to the likely tokens, and there float16 is most precise. Raw logits would not
        # use that.
        bits_PV = half_bits(predictions.logits_PV - log_z_P[:, None])
        columns = {
            "log_probs": lists(bits_PV.ravel(), np.full(len(bits_PV), bits_PV.shape[1]), pa.uint16()),
            "log_z": pa.array(log_z_P.cpu().numpy()),
        }
        return columns, log_z_P.new_ones(len(log_z_P))

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
        return Dense((from_half_bits(columns["log_probs"]) / temperature).softmax(dim=1))

    def problem(self, columns: Columns) -> str | None:
        return wrong_width(columns["log_probs"], self.vocabulary_size) or not_finite(columns, "log_probs", "log_z")

    def num_bytes(self) -> float:
        # Measured: 2 bytes a number compress to about 1.3 with zstd and split bytes.
        return 1.3 * self.vocabulary_size

    def candidates_sql(self) -> tuple[str, str]:
        return "range(len(log_probs))", "list_transform(log_probs, lambda x: exp(half(x)))"

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        """Returns the logits in the precision of float16, and no hidden states."""
        import torch

        log_z_P = torch.from_numpy(columns["log_z"].to_numpy(zero_copy_only=False).copy())
        logits_PV = from_half_bits(columns["log_probs"]) + log_z_P[:, None]
        return Predictions(logits_PV, logits_PV[:, :0], random_P)


MAX_HIDDEN_SIZE = 2**16


class HiddenCodec(Codec):
    """Column ``hidden``: float16 bits.

    Attributes:
        hidden_size: H.
    """

    card_line: ClassVar[str] = (
        "| `hidden` | bits of float16: the input of the teacher's last layer, which is `decoder.safetensors` |"
    )
    is_lossless: ClassVar[bool] = True
    needs_decoder: ClassVar[bool] = True

    name: Literal["hidden"] = "hidden"
    hidden_size: int = Field(ge=1, le=MAX_HIDDEN_SIZE)

    def fields(self) -> dict[str, pa.DataType]:
        return {"hidden": pa.list_(pa.uint16())}

    def encode(self, predictions: Predictions) -> tuple[dict[str, pa.Array], "torch.Tensor"]:
        bits_PH = half_bits(predictions.hidden_PH)
        counts_P = np.full(len(bits_PH), bits_PH.shape[1])
        # Nothing is dropped, so the whole probability mass is kept.
        return {"hidden": lists(bits_PH.ravel(), counts_P, pa.uint16())}, predictions.logits_PV.new_ones(len(bits_PH))

    def decode(self, columns: Columns, temperature: float, decoder: Decoder | None = None) -> Dense:
        assert decoder is not None, "the set has its decoder"
        return Dense((decoder(from_half_bits(columns["hidden"])) / temperature).softmax(dim=1))

    def problem(self, columns: Columns) -> str | None:
        return wrong_width(columns["hidden"], self.hidden_size) or not_finite(columns, "hidden")

    def num_bytes(self) -> float:
        return 1.4 * self.hidden_size

    def candidates_sql(self) -> tuple[str, str]:
        """Returns SQL nulls, because SQL cannot apply the decoder. Recode the set to see words."""
        return "[null]", "[null]"

    def predictions(self, columns: Columns, decoder: Decoder | None, random_P: "torch.Tensor") -> Predictions:
        assert decoder is not None, "the set has its decoder"
        hidden_PH = from_half_bits(columns["hidden"])
        return Predictions(decoder(hidden_PH), hidden_PH, random_P)
