"""Thresholds by proof and by cost: against brute force, and the bound on rows that chose nothing."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from student.cascade.choose_thresholds import NEVER, Answered, certified_thresholds, cheapest_thresholds, frontier
from tests.helpers.messages import naming

SPLITS, CONFIDENCE, DISAGREEMENT = 200, 0.95, 0.05


def population(num_rows: int, seed: int) -> Answered:
    """Two students that differ from the last stage the more often the less sure they are."""
    random = np.random.default_rng(seed)
    margin_SN = random.random((2, num_rows)).astype(np.float32)
    last_N = random.integers(3, size=num_rows)
    differs_SN = random.random((2, num_rows)) < np.array([[0.5], [0.3]]) * (1 - margin_SN) ** 2
    label_SN = np.where(differs_SN, (last_N + 1) % 3, last_N)
    return Answered(margin_SN, np.vstack([label_SN, last_N]))


def test_the_first_stage_that_is_sure_answers() -> None:
    answered = Answered(
        np.array([[0.9, 0.2, 0.5], [0.1, 0.8, 0.3]], np.float32), np.array([[0, 0, 0], [1, 1, 1], [2, 2, 2]])
    )
    assert answered.stage_N([0.5, 0.3]).tolist() == [0, 1, 2]
    assert answered.label_N([0.5, 0.3]).tolist() == [0, 1, 2]
    assert answered.stage_N([NEVER, NEVER]).tolist() == [2, 2, 2]
    assert answered.stage_N([-1.0, NEVER]).tolist() == [0, 0, 0]


def test_the_bound_is_broken_in_at_most_one_split_of_twenty() -> None:
    everything, random = population(20_000, seed=1), np.random.default_rng(2)
    broken, shares = 0, []
    for split in range(SPLITS):
        chosen = everything.taken(random.choice(20_000, 2000, replace=False))
        thresholds, trials = certified_thresholds(chosen, DISAGREEMENT, CONFIDENCE, seed=split)
        differs_N = everything.label_N(thresholds) != everything.label_SN[-1]
        stage_N = everything.stage_N(thresholds)
        broken += any(
            differs_N[stage_N == number].mean() > DISAGREEMENT for number in range(2) if (stage_N == number).any()
        )
        shares.append((stage_N < 2).mean())
        assert differs_N.mean() <= DISAGREEMENT
        assert [trial is None for trial in trials] == [threshold == NEVER for threshold in thresholds]
    assert broken <= SPLITS * (1 - CONFIDENCE)
    assert np.mean(shares) > 0.5  # the bound is of use


def test_a_stage_of_which_nothing_can_be_proved_answers_nothing() -> None:
    thresholds, trials = certified_thresholds(population(40, seed=0), 0.01, CONFIDENCE)
    assert thresholds == [NEVER, NEVER]
    assert trials == [None, None]


@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.5, 0.9]))
def test_nothing_better_is_within_the_budget(seed: int, budget: float) -> None:
    answered = population(60, seed)
    right_SN = answered.label_SN == answered.label_SN[-1]
    costs, columns = [1.0, 3.0, 10.0], np.arange(60)
    best = cheapest_thresholds(frontier(answered, right_SN, costs), budget, None)

    def value(thresholds: tuple[float, ...] | list[float]) -> tuple[float, float]:
        stage_N = answered.stage_N(thresholds)
        return float(right_SN[stage_N, columns].mean()), float(np.cumsum(costs)[stage_N].mean() / costs[-1])

    accuracy, cost = value(best)
    assert cost <= budget
    for thresholds in itertools.product([NEVER, 0.9, 0.7, 0.5, 0.3, 0.1, -1.0], repeat=2):
        other, its_cost = value(thresholds)
        # Thresholds off the grid can be better by what lies between two of its points.
        assert its_cost > budget or other <= accuracy + 0.1


def test_a_frontier_costs_more_and_is_right_more_often_at_each_step() -> None:
    answered = population(200, seed=1)
    right_SN = answered.label_SN == answered.label_SN[-1]
    choices = frontier(answered, right_SN, [1, 3, 10])
    assert len(choices) > 5
    for one, other in itertools.pairwise(choices):
        assert one.cost < other.cost
        assert one.accuracy < other.accuracy
    assert choices[0].cost == pytest.approx(0.1)  # the first stage answers all
    assert choices[-1].accuracy == 1  # of the last stage itself


def test_the_target_is_reached_at_the_lowest_cost() -> None:
    answered = population(5000, seed=3)
    right_SN = answered.label_SN == answered.label_SN[-1]
    low, high = (cheapest_thresholds(frontier(answered, right_SN, [1, 3, 10]), None, target) for target in (0.9, 0.98))
    asked = np.cumsum([1, 3, 10])
    for thresholds, target in ((low, 0.9), (high, 0.98)):
        stage_N = answered.stage_N(thresholds)
        assert right_SN[stage_N, np.arange(5000)].mean() >= target
    assert asked[answered.stage_N(low)].mean() < asked[answered.stage_N(high)].mean() < 14


def test_what_cannot_be_reached_is_refused() -> None:
    answered = population(500, seed=3)
    wrong_SN = answered.label_SN == 0
    with pytest.raises(ConfigError, match=naming("--target-accuracy 0.99: ")):
        cheapest_thresholds(frontier(answered, wrong_SN, [1, 3, 10]), None, 0.99)
    with pytest.raises(ConfigError, match=naming("--budget 0.05: ", "0.1")):
        cheapest_thresholds(frontier(answered, wrong_SN, [1, 3, 10]), 0.05, None)
