import warnings
from math import log, sqrt
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from pipeline.arrays import Floats
from pipeline.tasks.metrics import (
    OF_COUNTS,
    OF_LABELS,
    OF_SCORES,
    bin_scores,
    class_summary,
    confusion,
    fidelity,
    glue_score,
    majority_scores,
    mean_kl,
    score_logits,
)
from pipeline.tasks.target import NO_LABEL, Target, make_target
from pipeline.tasks.task import Bins, ClassMetric, LabelMetric, Metric, ScoreMetric, load_task

BINARY = make_target(load_task("mrpc"))
SCORE = make_target(load_task("stsb"))
BINS = Target(kind="bins", names=("1", "2", "3"), bins=Bins(low=1, high=3, width=1))
CORRELATIONS: tuple[Metric, ...] = ("pearson", "spearmanr")
ALL: tuple[Metric, ...] = ("accuracy", "f1", "matthews_correlation")


def test_every_metric_is_worked_out() -> None:
    assert tuple(OF_COUNTS) == get_args(ClassMetric)
    assert tuple(OF_LABELS) == get_args(LabelMetric)
    assert tuple(OF_SCORES) == get_args(ScoreMetric)


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_classes_against_scikit_learn(rows: list[tuple[int, int]]) -> None:
    gold, predicted = np.array(rows).T
    counts_1CC = confusion(gold, predicted, 3)[None].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of a class that is missing
        expected = {
            "accuracy": sk.accuracy_score(gold, predicted),
            "f1": sk.f1_score(gold, predicted, labels=[1], average="macro", zero_division=0.0),
            "macro_f1": sk.f1_score(gold, predicted, average="macro", zero_division=0.0),
            "matthews_correlation": sk.matthews_corrcoef(gold, predicted) if len({*gold, *predicted}) > 1 else 0,
        }
    assert {name: of_counts(counts_1CC)[0] for name, of_counts in OF_COUNTS.items()} == pytest.approx(expected)


@given(rows=st.lists(st.tuples(st.integers(-9, 9), st.floats(-5, 5, width=16)), min_size=2, max_size=40))
def test_scores_against_scipy(rows: list[tuple[float, float]]) -> None:
    pairs_21N = np.array(rows, dtype=np.float64).T[:, None]
    constant = bool((np.ptp(pairs_21N, axis=-1) == 0).any())
    oracles = {"pearson": stats.pearsonr, "spearmanr": stats.spearmanr}
    for name, of_scores in OF_SCORES.items():
        expected = 0 if constant else oracles[name](*pairs_21N[:, 0]).statistic
        assert of_scores(pairs_21N) == pytest.approx([expected], abs=1e-7)


def answers(classes: list[int]) -> Floats:
    return np.eye(2, dtype=np.float32)[classes]


def score_classes(predicted: list[int], gold: list[int]) -> dict[str, float]:
    return score_logits(ALL, BINARY, answers(predicted), np.array(gold), np.full(len(gold), np.nan, dtype=np.float32))


def score_scores(predicted: list[float], gold: list[float]) -> dict[str, float]:
    logits = np.array(predicted, dtype=np.float32)[:, None]
    gold_N = np.array(gold, dtype=np.float32)
    return score_logits(("pearson", "spearmanr"), SCORE, logits, np.full(len(gold), NO_LABEL), gold_N)


def test_hand_computed_classification() -> None:
    # tp 2, fp 1, fn 1, tn 3
    scores = score_classes([1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0])
    assert scores == pytest.approx({"accuracy": 5 / 7, "f1": 2 * 2 / (2 * 2 + 2), "matthews_correlation": 5 / 12})


def test_hand_computed_correlations() -> None:
    # ranks 1 2 4 3 against 1 2 3 4: rho = 1 - 6 * 2 / (4 * 15)
    scores = score_scores([0, 1, 5, 2], [0, 1, 2, 3])
    assert scores == pytest.approx({"pearson": 5 / sqrt(14 * 5), "spearmanr": 0.8}, rel=1e-6)


@pytest.mark.parametrize(("predicted", "gold"), [([0, 0, 0], [0, 1, 1]), ([1, 1], [1, 1]), ([0, 0], [0, 0])])
def test_constant_class_has_no_correlation(predicted: list[int], gold: list[int]) -> None:
    scores = score_classes(predicted, gold)
    assert scores["matthews_correlation"] == 0
    assert scores["accuracy"] == pytest.approx(np.mean(np.equal(predicted, gold)))


@pytest.mark.parametrize(("predicted", "gold"), [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [4, 4, 4]), ([1], [1])])
def test_constant_score_has_no_correlation(predicted: list[float], gold: list[float]) -> None:
    assert score_scores(predicted, gold) == {"pearson": 0, "spearmanr": 0}


def test_rows_without_gold_are_ignored() -> None:
    assert score_classes([1, 0, 0, 1], [1, NO_LABEL, 0, NO_LABEL]) == score_classes([1, 0], [1, 0])
    assert score_scores([0, 1, 9, 3], [0, 1, np.nan, 2]) == score_scores([0, 1, 3], [0, 1, 2])
    assert score_classes([1, 1], [NO_LABEL, NO_LABEL]) == {}
    assert score_scores([1, 1], [np.nan, np.nan]) == {}


def test_kl_by_hand() -> None:
    half = np.zeros((1, 2), dtype=np.float32)
    skew = np.log(np.array([[0.75, 0.25]], dtype=np.float32))
    assert mean_kl(skew, half) == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5), rel=1e-5)
    assert mean_kl(half, skew) == pytest.approx(0.5 * log(2 / 3) + 0.5 * log(2), rel=1e-5)
    assert mean_kl(np.concatenate([skew, half]), np.concatenate([half, half])) == pytest.approx(mean_kl(skew, half) / 2)
    assert mean_kl(skew + 100, skew) == pytest.approx(0, abs=1e-6)


def test_kl_of_extreme_logits_is_finite() -> None:
    sure = np.array([[1000, -1000]], dtype=np.float32)
    assert mean_kl(sure, sure) == 0
    assert mean_kl(sure, -sure) == pytest.approx(2000)


def test_fidelity() -> None:
    close = fidelity(BINARY, answers([0, 1, 1, 1]), answers([0, 0, 1, 1]))
    assert close["agreement"] == 0.75
    assert close["kl"] == pytest.approx(mean_kl(answers([0]), answers([1])) / 4)
    score = fidelity(SCORE, np.array([[1], [3]], dtype=np.float32), np.array([[2], [5]], dtype=np.float32))
    assert score == pytest.approx({"pearson": 1, "rmse": sqrt((1 + 4) / 2)})
    assert fidelity(BINARY, answers([]), answers([])) == {}


def test_majority_scores() -> None:
    nan, known = np.full(5, np.nan, dtype=np.float32), np.full(5, 2.0, dtype=np.float32)
    names: tuple[Metric, ...] = ("accuracy", "f1", "matthews_correlation")
    mostly_ones = majority_scores(names, BINARY, np.array([1, 1, 0, 1, NO_LABEL]), nan)
    assert mostly_ones == pytest.approx({"accuracy": 0.75, "f1": 6 / 7, "matthews_correlation": 0})
    assert majority_scores(("f1",), BINARY, np.array([0, 0, 1]), nan[:3]) == {"f1": 0}
    assert majority_scores(names, BINARY, np.full(5, NO_LABEL), nan) == {}
    assert majority_scores(("pearson",), SCORE, np.full(5, NO_LABEL), known) == {"pearson": 0}
    assert majority_scores(("pearson",), SCORE, np.full(5, NO_LABEL), nan) == {}


@pytest.mark.parametrize("kind", ["score", "bins"])
def test_guessing_has_no_correlation_with_scores(kind: str) -> None:
    target, gold = {"score": SCORE, "bins": BINS}[kind], np.array([1.0, 1.0, 3.0, np.nan], dtype=np.float32)
    assert majority_scores(CORRELATIONS, target, np.full(4, NO_LABEL), gold) == {"pearson": 0, "spearmanr": 0}


def test_guessing_among_three_classes() -> None:
    three, nan = make_target(load_task("mnli")), np.full(6, np.nan, dtype=np.float32)
    gold = np.array([2, 0, 2, 1, NO_LABEL, NO_LABEL])
    assert majority_scores(("accuracy", "matthews_correlation"), three, gold, nan) == {
        "accuracy": 0.5,
        "matthews_correlation": 0,
    }


def test_glue_takes_the_mean_of_a_tasks_metrics() -> None:
    assert glue_score({"accuracy": 0.9, "f1": 0.5}) == pytest.approx(0.7)
    assert glue_score({"matthews_correlation": -0.25}) == -0.25
    assert glue_score({}) is None
    assert glue_score({"accuracy": 0.9, "macro_f1": 0.5}) is None


def test_readings_of_bins_by_hand() -> None:
    # Likeliest bins 1, 2, 3, 3, though the first row's expected score is 2. Gold in bins: 1, 2, 3, 3.
    logits = np.log(np.array([[40, 25, 35], [10, 80, 10], [1, 1, 98], [0.1, 0.1, 99.8]], dtype=np.float32))
    gold = np.array([0.0, 2.4, 2.6, 3.0], dtype=np.float32)
    scores = bin_scores(CORRELATIONS, BINS, logits, gold)
    # deviations -5/4 -1/4 3/4 3/4 and -2 2/5 3/5 1; of the ranks -3/2 -1/2 1 1 and -3/2 -1/2 1/2 3/2
    assert scores == pytest.approx(
        {
            "pearson_argmax": 3.6 / sqrt(2.75 * 5.52),
            "spearmanr_argmax": 4.5 / sqrt(4.5 * 5),
            "pearson_argmax_binned_gold": 1,
            "spearmanr_argmax_binned_gold": 1,
        },
        rel=1e-6,
    )
    expected_score = score_logits(CORRELATIONS, BINS, logits, np.full(4, NO_LABEL), gold)
    assert expected_score["pearson"] != pytest.approx(scores["pearson_argmax"], abs=0.01)


def test_readings_of_bins_are_over_rows_with_gold() -> None:
    answers_NC = np.eye(3, dtype=np.float32)
    gold = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    scores = bin_scores(CORRELATIONS, BINS, answers_NC, gold)
    assert list(scores.values()) == pytest.approx([1, 1, 1, 1])
    nothing = np.full(3, np.nan, dtype=np.float32)
    opposite = np.concatenate([answers_NC, answers_NC[::-1]])
    assert bin_scores(CORRELATIONS, BINS, opposite, np.concatenate([gold, nothing])) == scores
    assert bin_scores(CORRELATIONS, BINS, answers_NC, nothing) == {}


def test_only_bins_have_readings() -> None:
    gold = np.array([1.0, 2.0], dtype=np.float32)
    assert bin_scores(CORRELATIONS, SCORE, gold[:, None], gold) == {}
    assert bin_scores(("accuracy",), BINARY, answers([0, 1]), gold) == {}


def test_macro_f1_and_the_number_of_labels_ever_predicted_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    gold_N = random.choice(6, 200, p=[0.8, 0.1, 0.05, 0.05, 0, 0])
    logits_NC = np.array(random.normal((2, 1, 0, -9, -9, 0), size=(200, 6)), dtype=np.float32)
    target = Target(kind="classes", names=tuple("abcdef"))
    more_NC, unknown = np.append(logits_NC, logits_NC[:1], axis=0), NO_LABEL
    summary = class_summary(target, more_NC, np.append(gold_N, unknown))
    predicted_N = logits_NC.argmax(axis=1)
    labels = np.union1d(gold_N, predicted_N)
    assert summary["macro_f1"] == pytest.approx(sk.f1_score(gold_N, predicted_N, average="macro", labels=labels))
    assert (summary["labels_in_gold"], summary["labels_predicted"]) == (4, len(set(predicted_N)))
    assert class_summary(target, logits_NC, np.full(200, NO_LABEL)) == {}
    assert class_summary(Target(kind="classes", names=("a", "b")), logits_NC[:, :2], gold_N % 2) == {}
