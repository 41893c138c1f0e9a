"""Temperatures and intervals by hand and by other libraries, and the measures of probabilities."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression

from pipeline.arrays import Floats, Ints
from pipeline.sql.read_only_query import open_files
from pipeline.tasks.calibration_error import calibration_scores, coverage, probability_scores
from pipeline.tasks.target import NO_LABEL, Target, make_target, sigmoid, softmax
from pipeline.tasks.task import load_task
from pipeline.tasks.temperature import HOTTEST, Calibration, calibrated, fit_calibration, intervals

BINARY, THREE, SCORE = (make_target(load_task(name)) for name in ("mrpc", "mnli", "stsb"))
LABELS = Target(kind="labels", names=("a", "b", "c"))
MEASURES = ("calibration_error", "brier", "log_loss")
NO_SCORES = np.empty(0, dtype=np.float32)


def temperatures(target: Target, logits: np.ndarray, gold: Ints) -> tuple[float, ...]:
    fitted = fit_calibration(target, logits.astype(np.float32), gold, NO_SCORES)
    assert fitted is not None
    assert fitted.num_rows == int((gold.reshape(len(gold), -1)[:, 0] != NO_LABEL).sum())
    return fitted.temperature


def by_sql(macro: str, gold: Sequence[Any] | Ints, logits: Floats) -> tuple[float, ...]:
    """The measures that a macro of `distill sql` gives."""
    with open_files({}) as connection:
        connection.register(
            "rows", pa.table({"split": ["dev"] * len(gold), "label": list(gold), "logits": list(logits)})
        )
        found = connection.execute(f"select {', '.join(MEASURES)} from {macro}(rows)").fetchone()
    assert found is not None
    return found


def flat_answers(num_rows: int = 4000) -> tuple[Floats, Ints]:
    """Three-class logits of a quarter of the size that their gold was drawn by."""
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (num_rows, 3)).astype(np.float32)
    gold = np.array([random.choice(3, p=p / p.sum()) for p in softmax(logits).astype(np.float64)])
    return (logits / 4).astype(np.float32), gold


def test_the_temperature_makes_confidence_the_share_of_right_answers() -> None:
    logits, gold = np.tile([4.0, 0.0], (1000, 1)), np.repeat([0, 1], [750, 250])
    (temperature,) = temperatures(BINARY, logits, gold)
    # softmax((4 / T, 0)) is 0.75 where 4 / T is log 3; one row in 1,002 of doubt changes the third digit.
    assert temperature == pytest.approx(4 / np.log(3), rel=5e-3)
    assert softmax(logits.astype(np.float32) / temperature)[0, 0] == pytest.approx(0.75, abs=1e-3)


def test_logits_that_are_too_flat_get_their_size_back() -> None:
    logits, gold = flat_answers()
    assert temperatures(THREE, logits, gold)[0] == pytest.approx(1 / 4, rel=0.05)


def test_rows_without_gold_do_not_count() -> None:
    logits, gold = flat_answers(600)
    fewer = np.where(np.arange(600) % 3, gold, NO_LABEL)
    assert temperatures(THREE, logits, fewer) == temperatures(THREE, logits[fewer >= 0], fewer[fewer >= 0])
    assert fit_calibration(THREE, logits, np.full(600, NO_LABEL), NO_SCORES) is None


def test_the_temperature_of_a_label_is_that_of_a_logistic_regression() -> None:
    random = np.random.default_rng(5)
    logits = random.normal(0, 3, (5000, 3))
    gold = (random.random((5000, 3)) < sigmoid((logits / [1, 3, 0.5]).astype(np.float32))).astype(np.int64)
    fitted = temperatures(LABELS, logits, gold)
    for column, temperature in enumerate(fitted):
        oracle = LogisticRegression(C=np.inf, fit_intercept=False).fit(logits[:, [column]], gold[:, column])
        assert 1 / temperature == pytest.approx(float(oracle.coef_[0, 0]), rel=0.02)


def test_a_label_of_few_rows_takes_the_temperature_of_all() -> None:
    random = np.random.default_rng(5)
    logits = random.normal(0, 3, (500, 3))
    gold = (random.random((500, 3)) < sigmoid((logits / 2).astype(np.float32))).astype(np.int64)
    gold[:, 2] = np.arange(500) < 9
    first, second, rare = temperatures(LABELS, logits, gold)
    assert rare not in (first, second)
    assert temperatures(LABELS, np.repeat(logits.reshape(-1, 1), 3, axis=1), np.repeat(gold.reshape(-1, 1), 3, axis=1))[
        0
    ] == pytest.approx(rare, rel=2e-3)


def test_few_rows_move_the_temperature_little() -> None:
    logits, gold = np.tile([3.0, 0.0], (5, 1)), np.array([0, 0, 0, 1, 1])
    # The doubt of one row in seven is shared by both classes: 3 rows of five become 3 * 6/7 + 5 * 1/14.
    share = (3 * 6 / 7 + 5 / 14) / 5
    log_t = np.linspace(-3, 3, 60_001)
    scaled = 3 / np.exp(log_t)
    loss = 5 * (np.log1p(np.exp(scaled)) - share * scaled) + log_t**2 / 2
    assert temperatures(BINARY, logits, gold)[0] == pytest.approx(np.exp(log_t[loss.argmin()]), rel=1e-3)
    # Without the prior 3 / T would be the log of the odds.
    assert 1 < temperatures(BINARY, logits, gold)[0] < 0.5 * 3 / np.log(share / (1 - share))


def test_twenty_rows_hardly_worsen_calibrated_probabilities() -> None:
    logits, gold = flat_answers()
    logits, random, excess = 4 * logits, np.random.default_rng(0), []
    before = probability_scores(THREE, logits, gold)["log_loss"][0]
    for _ in range(12):
        rows = random.choice(len(gold), 20, replace=False)
        fitted = fit_calibration(THREE, logits[rows], gold[rows], NO_SCORES)
        excess.append(probability_scores(THREE, calibrated(logits, fitted), gold)["log_loss"][0] - before)
    assert np.mean(excess) < 0.02


def test_a_student_that_is_always_right_or_always_wrong_keeps_a_doubt() -> None:
    logits = np.tile([1.0, 0.0], (998, 1))
    (sure,) = temperatures(BINARY, logits, np.zeros(998, dtype=np.int64))
    # The doubt of one row in a thousand is shared by two classes, and the prior of T adds as much.
    assert softmax(logits.astype(np.float32) / sure)[0, 0] == pytest.approx(0.999, abs=5e-4)
    assert temperatures(BINARY, logits, np.ones(998, dtype=np.int64)) == pytest.approx((HOTTEST,), rel=1e-3)


@settings(deadline=None, max_examples=25)
@given(hnp.arrays(np.float32, (60, 3), elements=st.floats(-50, 50, width=32)), st.integers(0, 10**6))
def test_calibration_changes_no_answer_and_betters_the_log_loss(logits: Floats, seed: int) -> None:
    gold = np.random.default_rng(seed).integers(3, size=60)
    fitted = fit_calibration(THREE, logits, gold, NO_SCORES)
    scaled = calibrated(logits, fitted)
    assert scaled.dtype == np.float32
    best = logits[np.arange(60), scaled.argmax(axis=1)]
    assert (best >= logits.max(axis=1) - 1e-4).all()
    before, after = (probability_scores(THREE, one, gold)["log_loss"][0] for one in (logits, scaled))
    assert after <= before + 0.15  # the doubt of Platt costs a little where 60 rows leave none


def test_an_interval_is_the_conformal_quantile() -> None:
    gold = np.arange(19, dtype=np.float32)
    predicted = (gold + np.arange(1, 20)).astype(np.float32)[:, None]
    fitted = fit_calibration(SCORE, predicted, np.empty(0, dtype=np.int64), gold)
    assert fitted == Calibration(half_width=18.0, num_rows=19)  # the 18th of 19 errors: 18 / 20 of further rows
    assert np.array_equal(intervals(np.array([2.0]), fitted) or (), [[-16.0], [20.0]])
    assert intervals(np.array([2.0]), None) is None
    on_a_scale = fitted.model_copy(update={"score_range": (0.0, 18.5)})
    assert np.array_equal(intervals(np.array([2.0]), on_a_scale) or (), [[0.0], [18.5]])
    assert calibrated(predicted, fitted) is predicted


def test_intervals_hold_nine_further_rows_of_ten() -> None:
    random = np.random.default_rng(0)
    shares = []
    for _ in range(200):
        gold = random.uniform(0, 5, 400).astype(np.float32)
        predicted = (gold + random.standard_t(2, 400)).astype(np.float32)[:, None]
        fitted = fit_calibration(SCORE, predicted[:100], np.empty(0, dtype=np.int64), gold[:100])
        assert fitted is not None
        shares.append((np.abs(predicted[100:, 0] - gold[100:]) <= np.float32(fitted.half_width or 0)).mean())
    share, ends = coverage(SCORE, predicted[100:], gold[100:], fitted)["coverage"]
    low, high = ends or (1, 0)
    assert share == pytest.approx(shares[-1])
    assert low < share < high
    assert np.mean(shares) == pytest.approx(0.9, abs=0.01)


def test_measures_are_those_of_scikit_learn_and_of_sql() -> None:
    logits, gold = flat_answers(700)
    gold[:50] = NO_LABEL
    scores = probability_scores(THREE, logits, gold)
    p, known = softmax(logits)[50:], gold[50:]
    assert scores["log_loss"][0] == pytest.approx(-np.mean(np.log(p[np.arange(650), known])))
    assert scores["brier"][0] == pytest.approx(sum(np.mean((p[:, k] - (known == k)) ** 2) for k in range(3)))
    assert by_sql("calibration_error", known, logits[50:]) == pytest.approx([scores[name][0] for name in MEASURES])
    for value, ends in scores.values():
        low, high = ends or (1, 0)
        assert low <= value <= high


def test_measures_of_labels_count_each_label() -> None:
    random = np.random.default_rng(1)
    logits, gold = random.normal(0, 2, (300, 3)).astype(np.float32), random.integers(2, size=(300, 3))
    scores = probability_scores(LABELS, logits, gold)
    p, known = sigmoid(logits).ravel().astype(np.float64), gold.ravel()
    assert scores["log_loss"][0] == pytest.approx(sk.log_loss(known, p))
    assert scores["brier"][0] == pytest.approx(sk.brier_score_loss(known, p))
    bins = [(known[mask], p[mask]) for k in range(10) if (mask := (p >= k / 10) & (p < (k + 1) / 10)).any()]
    error = sum(len(a) * abs(a.mean() - b.mean()) for a, b in bins) / len(p)
    assert scores["calibration_error"][0] == pytest.approx(error)
    lists = [np.flatnonzero(row).astype(np.int32) for row in gold]
    assert by_sql("label_calibration_error", lists, logits) == pytest.approx([scores[name][0] for name in MEASURES])


def test_before_and_after_stand_side_by_side() -> None:
    logits, gold = flat_answers()
    fitted = fit_calibration(THREE, logits[:2000], gold[:2000], NO_SCORES)
    found = calibration_scores(THREE, logits[2000:], gold[2000:], NO_SCORES, fitted)
    for name in ("calibration_error", "brier", "log_loss"):
        assert found[name]["after"] < found[name]["before"]
        assert found[name]["after_interval"][0] <= found[name]["after"] <= found[name]["after_interval"][1]
    alone = calibration_scores(THREE, logits[2000:], gold[2000:], NO_SCORES, None)
    assert {name: set(value) for name, value in alone.items()} == {one: {"before", "before_interval"} for one in found}
    assert calibration_scores(SCORE, logits[:9, :1], np.full(9, NO_LABEL), np.zeros(9, np.float32), None) == {}


@pytest.mark.parametrize(("target", "wanted"), [(THREE, 1), (LABELS, 3), (SCORE, 0)])
def test_a_calibration_fits_its_target(target: Target, wanted: int) -> None:
    for count in range(4):
        problems = Calibration(temperature=(1.0,) * count, num_rows=1).problems(target)
        assert bool(problems) == (count != wanted)
