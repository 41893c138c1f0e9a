"""The proof behind ``certify``: known answers, and how often it is wrong where the truth is known."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from pipeline.tasks.intervals import upper_bound
from student.predict.certificate import certify_margins, fewest_rows

DRAWS, CONFIDENCE = 300, 0.95
# how many of the draws may be wrong: three deviations above the share that is promised
MOST_WRONG = DRAWS * 0.05 + 3 * math.sqrt(DRAWS * 0.05 * 0.95)


def test_bounds_are_clopper_and_pearsons() -> None:
    assert upper_bound(0, 299, 0.95) < 0.01 < upper_bound(0, 298, 0.95)
    assert upper_bound(5, 1050, 0.95) == pytest.approx(0.01, abs=2e-5)
    for wrong, count in ((0, 10), (3, 40), (39, 40)):
        assert binom.cdf(wrong, count, upper_bound(wrong, count, 0.9)) == pytest.approx(0.1)
    assert upper_bound(7, 7, 0.95) == upper_bound(0, 0, 0.95) == 1


def test_trials_begin_where_they_can_pass() -> None:
    assert fewest_rows(400, 0.01, 0.95) == 299
    assert fewest_rows(2000, 0.01, 0.95) == 400
    many = fewest_rows(10**6, 0.01, 0.95)
    assert fewest_rows(10**5, 0.01, 0.95) == many
    passing = next(k for k in range(many) if upper_bound(k + 1, many, 0.95) > 0.01)
    assert binom.cdf(passing, many, 0.0025) > 0.9


def test_the_laxest_threshold_before_the_first_that_fails_is_kept() -> None:
    margin_N = np.linspace(1, 0, 1000, dtype=np.float32)
    differs_N = np.arange(1000) >= 600  # of the surest 600 all agree
    certified, trials = certify_margins(margin_N, differs_N, 0.05, 0.95)
    assert certified is not None
    holds = [trial.percent for trial in trials if trial.bound <= 0.05 and trial.answered >= 100]
    assert certified.percent == max(holds)
    assert (certified.answered, certified.disagreements) == (620, 20)  # 30 of 630 have a bound of 0.064
    assert int((margin_N > certified.threshold).sum()) == 620
    worst, _ = certify_margins(margin_N, differs_N[::-1].copy(), 0.05, 0.95)
    assert worst is None


def test_all_is_answered_where_all_agree_and_equal_margins_stand_together() -> None:
    margin_N = np.repeat(np.array([0.9, 0.5, 0.0], dtype=np.float32), 100)
    certified, trials = certify_margins(margin_N, np.zeros(300, bool), 0.05, 0.95)
    assert certified is not None
    assert (certified.answered, certified.threshold) == (300, -1)
    assert {trial.answered for trial in trials} == {0, 100, 200, 300}
    assert certify_margins(margin_N[:20], np.zeros(20, bool), 0.05, 0.95)[0] is None  # too few to prove it


def test_where_the_truth_is_known_it_is_seldom_wrong_and_not_timid() -> None:
    """Margins are uniform, and at margin u a share 0.3 (1 - u)² differs: of the answers above t 0.1 (1 - t)²."""
    random = np.random.default_rng(0)
    coverages, wrong = [], 0
    for _ in range(DRAWS):
        margin_N = random.random(4000, dtype=np.float32)
        certified, _ = certify_margins(margin_N, random.random(4000) < 0.3 * (1 - margin_N) ** 2, 0.02, CONFIDENCE)
        coverage = 1 - max(certified.threshold, 0) if certified else 0.0
        wrong += 0.1 * coverage**2 > 0.02
        coverages.append(coverage)
    assert wrong <= MOST_WRONG
    assert np.mean(coverages) > 0.35  # the best possible is 0.447


def test_where_nothing_holds_it_is_seldom_claimed() -> None:
    """Every threshold is wrong by a hair."""
    random = np.random.default_rng(1)
    wrong = sum(
        certify_margins(random.random(1000, dtype=np.float32), random.random(1000) < 0.0501, 0.05, CONFIDENCE)[0]
        is not None
        for _ in range(DRAWS)
    )
    assert 0 < wrong <= MOST_WRONG
