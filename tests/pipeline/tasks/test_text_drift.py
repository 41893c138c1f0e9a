"""Drift: hand-computed indices, chance, and which signals are counted in which bin."""

import base64
import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.arrays import Ragged
from pipeline.tasks.target import Target
from pipeline.tasks.text_drift import (
    MOST_BYTES,
    Histogram,
    InputProfile,
    answer_signals,
    drifts,
    fit_profile,
    packed,
    text_signals,
    unpacked,
)

ALL = np.ones(8, dtype=bool)
SEEN = packed(ALL)
CLASSES = Target(kind="classes", names=("bad", "good", "odd"))


def test_the_index_of_two_bins_by_hand() -> None:
    profile = InputProfile(seen=SEEN, signals={"tokens": Histogram(edges=(5,), counts=(29, 9))})
    (found,) = drifts(profile, {"tokens": [9, 29]})
    p, q = 29.5 / 39, 9.5 / 39
    assert found.psi == pytest.approx((q - p) * math.log(q / p) + (p - q) * math.log(p / q))
    # The 99.9 % quantile of chi-squared with one degree of freedom is 10.828.
    assert found.limit == pytest.approx(10.828 * 2 / 38, rel=1e-3)
    assert not found.is_drifted  # so few inputs show nothing
    (many,) = drifts(profile, {"tokens": [900, 2900]})
    assert many.is_drifted
    (same,) = drifts(profile, {"tokens": [2900, 900]})
    assert same.psi == pytest.approx(0, abs=1e-9)
    # Of 38 inputs in the first bin and none in the second, 1 count is divided as 29/38 + 1 to 9/38.
    (empty,) = drifts(profile, {"tokens": [38, 0]})
    p, q = (29 + 67 / 76) / 39, (38 + 67 / 76) / 39
    assert empty.psi == pytest.approx((q - p) * math.log(q / p) + (p - q) * math.log((1 - q) / (1 - p)))


def test_a_value_on_an_edge_belongs_to_the_bin_below() -> None:
    profile = InputProfile(seen=SEEN, signals={"tokens": Histogram(edges=(2, 5), counts=(0, 0, 0))})
    assert profile.counts({"tokens": np.array([0.0, 2, 3, 5, 6, 100])})["tokens"].tolist() == [2, 2, 2]


def test_texts_and_answers_by_hand() -> None:
    parts = [Ragged.of([[1, 2], [], [3]]), Ragged.of([[99], [], [2, 2, 2]])]  # nobody knows of a token 99
    found = text_signals(parts, np.array([True, True, False, True]))
    assert found["tokens"].tolist() == [3, 0, 4]
    np.testing.assert_allclose(found["unknown"], [2 / 3, 0, 3 / 4])

    p_NC = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    found = answer_signals(CLASSES, np.log(p_NC).astype(np.float32))
    assert found["label"].tolist() == [0, 2]
    np.testing.assert_allclose(found["margin"], [0.2, 0.7], rtol=1e-5)

    several = Target(kind="labels", names=("a", "b"))
    odds = np.log(np.array([[0.9, 0.6], [0.2, 0.3]]) / (1 - np.array([[0.9, 0.6], [0.2, 0.3]])))
    found = answer_signals(several, odds.astype(np.float32))
    assert found["label"].tolist() == [0, 1]
    np.testing.assert_allclose(found["margin"], [0.2, 0.4], rtol=1e-5)

    found = answer_signals(Target(kind="score", names=("score",)), np.array([[1.5], [2.5]], dtype=np.float32))
    assert found["score"].tolist() == [1.5, 2.5]


def test_labels_beyond_the_frequent_ones_share_a_bin() -> None:
    labels = np.repeat(np.arange(30.0), np.arange(30, 0, -1))
    profile = fit_profile({"label": labels}, ALL)
    counts = profile.signals["label"].counts
    assert profile.labels == tuple(range(20))
    assert counts[:20] == tuple(range(30, 10, -1))
    assert counts[20] == sum(range(1, 11))
    # A label that no row of the profile had is one of the others.
    assert profile.counts({"label": np.array([0.0, 25, 99])})["label"].tolist() == [1, *[0] * 19, 2]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(0, 2**32 - 1))
def test_every_value_is_counted_once_and_a_copy_does_not_differ(values: list[int], seed: int) -> None:
    signals = {"tokens": np.array(values, dtype=np.float64), "label": np.array(values, dtype=np.float64)}
    profile = fit_profile(signals, ALL)
    again = {name: np.random.default_rng(seed).permutation(one) for name, one in signals.items()}
    counts = profile.counts(again)
    assert all(counts[name].tolist() == list(profile.signals[name].counts) for name in signals)
    assert all(one.psi == 0 for one in drifts(profile, counts))


def test_equal_distributions_stay_below_the_limit_and_others_do_not() -> None:
    rng = np.random.default_rng(1)
    exceeded = 0
    for _ in range(300):
        profile = fit_profile({"margin": rng.beta(2, 2, 150)}, ALL)
        (found,) = drifts(profile, profile.counts({"margin": rng.beta(2, 2, 150)}))
        exceeded += found.is_drifted
    assert exceeded <= 2  # of 300, at 99.9 %
    (found,) = drifts(profile, profile.counts({"margin": rng.beta(5, 2, 1000)}))
    assert found.is_drifted


@pytest.mark.parametrize("edges", [(1.0,), (2.0, 1.0), (1.0, 1.0)])
def test_a_histogram_from_elsewhere_is_checked(edges: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        Histogram(edges=edges, counts=(1, 2, 3))


@given(st.lists(st.booleans(), max_size=300))
def test_seen_tokens_are_unpacked_as_they_were(seen: list[bool]) -> None:
    found = unpacked(packed(np.array(seen, dtype=bool)))
    assert found[: len(seen)].tolist() == seen
    assert not found[len(seen) :].any()


@pytest.mark.parametrize("text", ["no base64", "AAAA", "é"])
def test_seen_tokens_from_elsewhere_are_checked(text: str) -> None:
    with pytest.raises(ValidationError):
        InputProfile(seen=text, signals={})


def test_a_bomb_does_not_fill_the_memory() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(2**26), 9)).decode()
    assert len(unpacked(bomb)) == 8 * MOST_BYTES
