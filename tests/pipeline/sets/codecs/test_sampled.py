"""Samples: as frequent as their probabilities, never further off than one, and right on average.

Shapes: P positions, V vocabulary, N draws, K random numbers at equal distances.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.sets.codecs import Dense, Predictions, Sparse
from pipeline.sets.codecs.distributions import GROUP, SampledCodec, draw
from student.losses.masked_words import cross_entropy

ROUNDING = 1e-5  # of the sums of up to 300 probabilities in float32

vocabulary_sizes = st.integers(1, 300) | st.sampled_from([1, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP, 2 * GROUP + 1])
few_likely = vocabulary_sizes.flatmap(
    lambda size: st.tuples(
        st.just(size), st.dictionaries(st.integers(0, size - 1), st.integers(1, 10**6), min_size=1, max_size=12)
    )
)
randoms = st.integers(1, 2**40 - 1).map(lambda k: k / 2**40)


def probabilities(size: int, weights: dict[int, int]) -> torch.Tensor:
    """A distribution over ``size`` tokens; those without a weight have probability 0."""
    weight_V = torch.zeros(size, dtype=torch.float64)
    weight_V[list(weights)] = torch.tensor(list(weights.values()), dtype=torch.float64)
    return (weight_V / weight_V.sum()).float()


def spread_out(size: int, seed: int, spread: float = 2) -> torch.Tensor:
    """Logits [V] of a distribution in which every token may be drawn."""
    return spread * torch.randn(size, generator=torch.Generator().manual_seed(seed))


def draw_once(p_V: torch.Tensor, random: float, num_samples: int) -> Any:
    return draw(p_V[None], torch.tensor([random], dtype=torch.float64), num_samples)[0].numpy()


def assert_systematic(p_V: torch.Tensor, random: float, num_samples: int) -> None:
    """Every point lies in the part of the cumulated distribution that belongs to its token."""
    drawn_N, p = draw_once(p_V, random, num_samples), p_V.double().numpy()
    points_N = (np.arange(num_samples) + random) / num_samples * p.sum()
    upto_V = p.cumsum()
    assert (np.diff(drawn_N) >= 0).all()
    assert (p[drawn_N] > 0).all()
    assert (points_N <= upto_V[drawn_N] + ROUNDING).all()
    assert (points_N >= (upto_V - p)[drawn_N] - ROUNDING).all()
    counts_V = np.bincount(drawn_N, minlength=len(p))
    assert np.abs(counts_V - num_samples * p).max() <= 1 + num_samples * ROUNDING


@given(distribution=few_likely, random=randoms, num_samples=st.integers(1, 255))
def test_few_likely_tokens(distribution: tuple[int, dict[int, int]], random: float, num_samples: int) -> None:
    assert_systematic(probabilities(*distribution), random, num_samples)


@given(size=vocabulary_sizes, seed=st.integers(0, 999), random=randoms, num_samples=st.integers(1, 255))
def test_many_likely_tokens(size: int, seed: int, random: float, num_samples: int) -> None:
    assert_systematic(spread_out(size, seed).softmax(dim=0), random, num_samples)


@pytest.mark.parametrize(
    ("weights", "size", "num_samples", "random", "drawn"),
    [
        ({0: 4, 1: 2, 2: 1, 3: 1}, 4, 8, 0.5, [0, 0, 0, 0, 1, 1, 2, 3]),
        ({0: 4, 1: 2, 2: 1, 3: 1}, 4, 4, 0.6, [0, 0, 1, 3]),  # the points 0.15, 0.4, 0.65 and 0.9
        ({0: 4, 1: 2, 2: 1, 3: 1}, 4, 2, 0.5, [0, 2]),  # 0.75 is where the third token begins
        ({127: 1, 128: 1}, 129, 2, 0.5, [127, 128]),
        ({127: 1, 128: 1}, 300, 3, 0.5, [127, 128, 128]),  # 1/2 is where the second group begins
        ({5: 1}, 300, 3, 0.999999, [5, 5, 5]),
        ({0: 1, 299: 3}, 300, 4, 0.25, [0, 299, 299, 299]),
    ],
)
def test_known_draws(weights: dict[int, int], size: int, num_samples: int, random: float, drawn: list[int]) -> None:
    assert draw_once(probabilities(size, weights), random, num_samples).tolist() == drawn


@pytest.mark.parametrize("p", [[0.25, 0.75 - 2.0**-20], [1, 1.5 * 2.0**-24]])
def test_rounded_sums_draw_no_impossible_token(p: list[float]) -> None:
    # the sum of the second in float32 is 1 + 2^-23: the last point lies beyond both of its tokens
    p_V = torch.tensor([*p, *[0] * 298])
    assert draw_once(p_V, 1 - 2**-30, 1).tolist() == [1]


def test_a_draw_next_to_1_is_no_impossible_token() -> None:
    # (19 + random) / 20 is rounded to 1
    assert draw_once(probabilities(300, {5: 1}), 1 - 2**-53, 20).tolist() == [5] * 20


def test_positions_are_drawn_each_by_its_own_number() -> None:
    p_PV = torch.stack([spread_out(300, seed).softmax(dim=0) for seed in range(5)])
    random_P = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    together = draw(p_PV, random_P, 20)
    alone = [draw_once(p_V, random, 20).tolist() for p_V, random in zip(p_PV, random_P.tolist(), strict=True)]
    assert together.tolist() == alone


def codec_of(size: int, num_samples: int, temperature: float = 1) -> SampledCodec:
    return SampledCodec(vocabulary_size=size, num_samples=num_samples, temperature=temperature)


@settings(max_examples=50)
@example(size=234, seed=315, num_samples=255, temperature=1)
@given(
    size=st.integers(2, 300),
    seed=st.integers(0, 999),
    num_samples=st.integers(1, 255),
    temperature=st.sampled_from([0.5, 1, 3]),
)
def test_columns_are_the_draws(size: int, seed: int, num_samples: int, temperature: float) -> None:
    codec, random_P = codec_of(size, num_samples, temperature), torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    logits_PV = torch.stack([spread_out(size, seed + k) for k in range(3)])
    # rounded as the encoder does it: a point between two tokens goes where rounding puts it
    p_PV = (logits_PV - logits_PV.logsumexp(dim=1, keepdim=True)).exp()
    p_PV = p_PV if temperature == 1 else (logits_PV / temperature).softmax(dim=1)
    columns, mass_P = codec.encode(Predictions(logits_PV, logits_PV[:, :0], random_P))
    assert codec.problem(columns) is None
    for place, drawn_N in enumerate(draw(p_PV, random_P, num_samples)):
        tokens, counts = np.unique(drawn_N.numpy(), return_counts=True)
        assert columns["candidates"][place].as_py() == tokens.tolist()  # ascending, each of them once
        assert columns["counts"][place].as_py() == counts.tolist()
        assert float(mass_P[place]) == pytest.approx(float(p_PV[place, tokens].sum()), abs=1e-5)
    kept = codec.decode(columns, temperature)
    assert kept.rest_P.tolist() == [0, 0, 0]
    sums_P = torch.zeros(3).index_add(0, kept.position_E, kept.probability_E)
    assert sums_P.tolist() == pytest.approx([1, 1, 1], abs=1e-5)


def draws_at_equal_distances(logits_V: torch.Tensor, num_samples: int, temperature: float, k: int) -> Sparse:
    """What is stored of one distribution with K random numbers at equal distances.

    The points of all K together are N K points at equal distances, of which a token gets N K p, to within 1. So the
    mean of its shares is p to within 1 / (N K).
    """
    codec, random_K = codec_of(len(logits_V), num_samples, temperature), (torch.arange(k).double() + 0.5) / k
    logits_KV = logits_V.expand(k, -1)
    columns, _ = codec.encode(Predictions(logits_KV, logits_KV[:, :0], random_K))
    return codec.decode(columns, temperature)


@pytest.mark.parametrize("temperature", [1, 2.5])
@pytest.mark.parametrize(("size", "num_samples"), [(4, 1), (128, 3), (300, 20), (300, 255)])
def test_the_mean_of_all_draws_is_the_distribution(size: int, num_samples: int, temperature: float) -> None:
    logits_V = spread_out(size, seed=1)
    p_V = (logits_V / temperature).softmax(dim=0)
    for k in (1, 10, 2000):
        kept = draws_at_equal_distances(logits_V, num_samples, temperature, k)
        mean_V = torch.zeros(size).double().index_add(0, kept.token_E, kept.probability_E.double()) / k
        assert float((mean_V - p_V).abs().max()) <= 1 / (num_samples * k) + 1e-6


@pytest.mark.parametrize("temperature", [1, 2.5])
def test_the_mean_gradient_is_that_of_the_whole_distribution(temperature: float) -> None:
    """The gradient of a student's logits is q less the teacher's share, and so as far off as the mean of shares."""
    size, num_samples, k = 300, 5, 2000
    logits_V, student_V = spread_out(size, seed=2), spread_out(size, seed=3)
    p_V = (logits_V / temperature).softmax(dim=0)
    kept = draws_at_equal_distances(logits_V, num_samples, temperature, k)
    _, drawn_KV = cross_entropy(student_V.expand(k, -1), [(1, kept)])
    _, whole_1V = cross_entropy(student_V[None], [(1, Dense(p_V[None]))])
    assert float((drawn_KV.mean(dim=0) - whole_1V[0]).abs().max()) <= 1 / (num_samples * k) + 1e-6
    # while a single draw is far from it
    assert float((drawn_KV[0] - whole_1V[0]).abs().max()) > 100 / (num_samples * k)
