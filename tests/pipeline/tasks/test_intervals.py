import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from pipeline.arrays import Floats, Ints
from pipeline.tasks.calibration_error import calibration_scores, coverage, probability_scores
from pipeline.tasks.metrics import bootstrap_intervals, score_logits
from pipeline.tasks.target import NO_LABEL, Target, make_target
from pipeline.tasks.task import Metric, load_task
from pipeline.tasks.temperature import Calibration

BINARY, THREE, SCORE = (make_target(load_task(name)) for name in ("mrpc", "mnli", "stsb"))
BINS = make_target(load_task("stsb"), "classification")
CLASSES: tuple[Metric, ...] = ("accuracy", "f1", "matthews_correlation")
SCORES: tuple[Metric, ...] = ("pearson", "spearmanr")
Numbers = npt.NDArray[np.float64] | Ints
SKLEARN: dict[Metric, Callable[[Numbers, Numbers], float]] = {
    "accuracy": sk.accuracy_score,
    "f1": lambda gold, said: sk.f1_score(gold, said, zero_division=0.0),
    "matthews_correlation": sk.matthews_corrcoef,
    "pearson": lambda gold, said: stats.pearsonr(gold, said).statistic,
    "spearmanr": lambda gold, said: stats.spearmanr(gold, said).statistic,
}


def of_classes(metrics: tuple[Metric, ...], target: Target, said: Ints, gold: Ints) -> dict[str, list[float]]:
    answers_NC = np.eye(target.num_logits, dtype=np.float32)[said]
    return bootstrap_intervals(metrics, target, answers_NC, gold, np.full(len(gold), np.nan, dtype=np.float32))


def of_scores(said: npt.ArrayLike, gold: npt.ArrayLike) -> dict[str, list[float]]:
    said_N, gold_N = np.array(said, dtype=np.float32), np.array(gold, dtype=np.float32)
    return bootstrap_intervals(SCORES, SCORE, said_N[:, None], np.full(len(gold_N), NO_LABEL), gold_N)


def noisy_classes(num_classes: int, num_rows: int = 80) -> tuple[Ints, Ints]:
    random = np.random.default_rng(7)
    gold = random.integers(num_classes, size=num_rows)
    return np.where(random.random(num_rows) < 0.6, gold, gold // 2), gold  # leans towards the first class


def noisy_scores(num_rows: int = 80) -> tuple[Floats, Floats]:
    random = np.random.default_rng(7)
    gold = random.uniform(0, 5, num_rows).round(1)
    return (gold + random.normal(0, 2, num_rows)).astype(np.float32), gold.astype(np.float32)


def expect_slow_resampling(intervals: dict[str, list[float]], said: Numbers, gold: Numbers) -> None:
    """Compares with resampled rows that scikit-learn or scipy scores; both sides have Monte-Carlo error."""
    random = np.random.default_rng(123)
    drawn = [random.integers(len(gold), size=len(gold)) for _ in range(600)]
    for name, interval in intervals.items():
        values = [SKLEARN[name](gold[rows], said[rows]) for rows in drawn]  # type: ignore[index]
        assert interval == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.35 * float(np.std(values))), name


def test_classes_against_rows_resampled_one_set_at_a_time() -> None:
    said, gold = noisy_classes(2)
    intervals = of_classes(CLASSES, BINARY, said, gold)
    assert list(intervals) == list(CLASSES)
    expect_slow_resampling(intervals, said, gold)


def test_three_classes_against_rows_resampled_one_set_at_a_time() -> None:
    said, gold = noisy_classes(3)
    intervals = of_classes(("accuracy", "matthews_correlation"), THREE, said, gold)
    assert list(intervals) == ["accuracy", "matthews_correlation"]
    expect_slow_resampling(intervals, said, gold)


def test_scores_against_rows_resampled_one_set_at_a_time() -> None:
    predicted, gold = noisy_scores()
    intervals = of_scores(predicted, gold)
    assert list(intervals) == list(SCORES)
    expect_slow_resampling(intervals, predicted.astype(np.float64), gold.astype(np.float64))


def test_the_expected_score_of_bins_is_what_is_resampled() -> None:
    _, gold = noisy_scores()
    logits_NC = np.random.default_rng(1).normal(0, 2, (len(gold), BINS.num_logits)).astype(np.float32)
    probabilities = np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)
    expected = probabilities @ (1 + 0.2 * np.arange(21))
    no_labels = np.full(len(gold), NO_LABEL)
    of_bins = bootstrap_intervals(SCORES, BINS, logits_NC, no_labels, gold)
    of_their_scores = of_scores(expected, gold)
    assert of_bins.keys() == of_their_scores.keys()
    for name, interval in of_bins.items():
        assert interval == pytest.approx(of_their_scores[name], abs=1e-3)


@pytest.mark.parametrize("right", [700, 990])
def test_accuracy_has_the_quantiles_of_the_binomial_distribution(right: int) -> None:
    gold = np.zeros(1000, dtype=np.int64)
    said = (np.arange(1000) >= right).astype(np.int64)
    known = stats.binom.ppf([0.025, 0.975], 1000, right / 1000) / 1000
    deviation = np.sqrt(right / 1000 * (1 - right / 1000) / 1000)
    assert of_classes(("accuracy",), BINARY, said, gold)["accuracy"] == pytest.approx(known, abs=0.25 * deviation)


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60))
def test_an_interval_lies_around_the_score_and_within_its_range(rows: list[tuple[int, int]]) -> None:
    said, gold = np.array(rows).T
    intervals = of_classes(CLASSES, BINARY, said, gold)
    low, high = intervals["accuracy"]
    assert low < high
    assert low <= (said == gold).mean() <= high
    for name, (low, high) in intervals.items():
        assert (-1 if name == "matthews_correlation" else 0) <= low <= high <= 1


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_score_lies_in_its_interval(num_classes: int) -> None:
    target = {2: BINARY, 3: THREE}[num_classes]
    names = CLASSES if num_classes == 2 else ("accuracy", "matthews_correlation")
    said, gold = noisy_classes(num_classes)
    no_scores = np.full(len(gold), np.nan, dtype=np.float32)
    points = score_logits(names, target, np.eye(num_classes, dtype=np.float32)[said], gold, no_scores)
    for name, (low, high) in of_classes(names, target, said, gold).items():
        assert low < points[name] < high
    said_score, gold_score = noisy_scores()
    points = score_logits(SCORES, SCORE, said_score[:, None], np.full(len(gold_score), NO_LABEL), gold_score)
    for name, (low, high) in of_scores(said_score, gold_score).items():
        assert low < points[name] < high


@pytest.mark.parametrize("num_rows", [1, 5, 500])
@pytest.mark.parametrize("right", [True, False])
def test_equal_rows_have_the_exact_interval_of_a_share_and_none_of_other_scores(num_rows: int, right: bool) -> None:
    gold = np.arange(num_rows) % 3
    interval = stats.binomtest(num_rows if right else 0, num_rows).proportion_ci(0.95, "exact")
    found = of_classes(("accuracy", "macro_f1"), THREE, gold if right else (gold + 1) % 3, gold)
    assert found == {"accuracy": pytest.approx([interval.low, interval.high])}


@pytest.mark.parametrize("num_rows", [1, 30])
@pytest.mark.parametrize("sign", [1, -1])
def test_perfect_correlations_have_no_interval(num_rows: int, sign: int) -> None:
    assert of_scores(sign * np.arange(num_rows), np.arange(num_rows)) == {}


@pytest.mark.parametrize("num_rows", [1, 4])
def test_probabilities_of_equal_rows_have_no_interval(num_rows: int) -> None:
    gold_N, logits_NC = np.zeros(num_rows, dtype=np.int64), np.full((num_rows, 3), -9, dtype=np.float32)
    labels = Target(kind="labels", names=("a", "b", "c"))
    for target, gold in ((THREE, gold_N), (labels, np.tile(np.array([1, 0, 0]), (num_rows, 1)))):
        assert [ends for _, ends in probability_scores(target, logits_NC, gold).values()] == [None] * 3
        found = calibration_scores(target, logits_NC, gold, np.empty(0, dtype=np.float32), None)
        assert [set(parts) for parts in found.values()] == [{"before"}] * 3
    far = Calibration(half_width=0.5, num_rows=9)
    ((share, ends),) = coverage(SCORE, logits_NC[:, :1], gold_N.astype(np.float32), far).values()
    assert share == 0
    assert ends == pytest.approx([0, 1 - 0.025 ** (1 / num_rows)])


def test_no_calibration_error_is_above_one() -> None:
    logits_NC = np.array([[9, -9, -9]] * 40 + [[1, 0, 0]], dtype=np.float32)
    for _, ends in probability_scores(THREE, logits_NC, np.full(41, 2)).values():
        assert ends is not None
    low, high = probability_scores(THREE, logits_NC, np.full(41, 2))["calibration_error"][1] or (9, 9)
    assert 0 <= low < high <= 1


def test_a_monotone_student_has_perfect_ranks_alone() -> None:
    intervals = of_scores(np.exp(np.arange(20)), np.arange(20))
    assert set(intervals) == {"pearson"}
    assert intervals["pearson"][1] < 0.9


@pytest.mark.parametrize("gold", [[0, 1, 1, 0] * 5, [0] * 20])
def test_the_negative_class_alone_has_no_f1(gold: list[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        intervals = of_classes(CLASSES, BINARY, np.zeros(20, dtype=np.int64), np.array(gold))
    assert set(intervals) == {"accuracy"}
    assert intervals["accuracy"][1] == (1 if sum(gold) == 0 else pytest.approx(0.7, abs=0.06))


@pytest.mark.parametrize(
    ("predicted", "gold"),
    [([2.3] * 9, list(range(9))), (list(range(9)), [3.7] * 9), ([2.3] * 9, [3.7] * 9), ([1.1], [2.2])],
)
def test_a_constant_score_has_no_correlation(predicted: list[float], gold: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert of_scores(predicted, gold) == {}


def test_the_same_rows_have_the_same_interval() -> None:
    first, again = ((of_classes(CLASSES, BINARY, *noisy_classes(2)), of_scores(*noisy_scores())) for _ in range(2))
    assert first == again


def test_the_bound_on_memory_does_not_change_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_scores(*noisy_scores())
    monkeypatch.setattr("pipeline.tasks.metrics.CHUNK_VALUES", 560)  # seven resamples at a time; 1000 = 142 * 7 + 6
    assert of_scores(*noisy_scores()) == whole
    monkeypatch.setattr("pipeline.tasks.metrics.CHUNK_VALUES", 1)
    assert of_scores(*noisy_scores()) == whole


def test_rows_without_gold_do_not_count() -> None:
    said, gold = noisy_classes(2)
    more_said, more_gold = np.concatenate([said, 1 - said]), np.concatenate([gold, np.full(len(gold), NO_LABEL)])
    assert of_classes(CLASSES, BINARY, more_said, more_gold) == of_classes(CLASSES, BINARY, said, gold)
    said_score, gold_score = noisy_scores()
    nothing = np.full(len(gold_score), np.nan, dtype=np.float32)
    longer = of_scores(np.concatenate([said_score, -said_score]), np.concatenate([gold_score, nothing]))
    assert longer == of_scores(said_score, gold_score)


def test_without_gold_there_is_no_interval() -> None:
    assert of_classes(CLASSES, BINARY, np.array([0, 1]), np.full(2, NO_LABEL)) == {}
    assert of_scores([1, 2], [np.nan, np.nan]) == {}
    nothing = np.empty(0, dtype=np.int64)
    assert of_classes(CLASSES, BINARY, nothing, nothing) == {}


def test_more_rows_leave_less_doubt() -> None:
    widths = []
    for num_rows in (50, 450):
        low, high = of_classes(("accuracy",), BINARY, np.arange(num_rows) % 5 // 4, np.zeros(num_rows, dtype=np.int64))[
            "accuracy"
        ]
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.25)  # a ninth of the rows, three times the width
