import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.arrays import Floats
from pipeline.errors import ConfigError
from pipeline.tasks.target import (
    NO_LABEL,
    Target,
    gold_arrays,
    gold_classes,
    make_target,
    predicted_scores,
    softmax,
    target_of_width,
)
from pipeline.tasks.task import load_task
from tests.helpers.messages import naming

STSB = load_task("stsb")
BINS = make_target(STSB, "classification")


def bin_names(scores: list[float]) -> list[str]:
    score_N = np.array(scores, dtype=np.float32)
    return [BINS.names[k] for k in gold_classes(BINS, np.full(len(scores), NO_LABEL), score_N)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target(kind="classes", names=("a", "b")), (True, True, False, False, "single_label_classification")),
        (Target(kind="labels", names=("a", "b")), (True, False, True, False, "multi_label_classification")),
        (BINS, (False, False, False, False, "single_label_classification")),
        (Target(kind="score", names=("score",)), (False, False, False, True, "regression")),
    ],
)
def test_what_each_kind_of_target_has(target: Target, expected: tuple[bool, bool, bool, bool, str]) -> None:
    found = (target.has_labels, target.has_classes, target.has_label_lists, target.is_score, target.type.problem_type)
    assert found == expected
    assert bool(target.type.why_no_classes) is not target.has_classes


def test_known_bins() -> None:
    assert bin_names([0, 0.4, 0.99, 1, 1.05, 1.2, 2.0, 3.25, 4.95, 5]) == [
        *("1", "1", "1", "1", "1", "1.2", "2", "3.2", "5", "5")
    ]


def test_halves_are_rounded_as_t5_does() -> None:
    # T5 rounds 5 * score, halves to the even number, and divides by 5: 2.5 -> 12.5 -> 12 -> 2.4
    assert bin_names([1.5, 2.5, 3.5, 4.5]) == ["1.6", "2.4", "3.6", "4.4"]


@given(st.floats(1, 5, width=32))
def test_a_score_falls_into_the_nearest_bin(score: float) -> None:
    assert abs(float(bin_names([score])[0]) - score) <= 0.1 + 1e-6


def test_unknown_score_has_no_class() -> None:
    classes = gold_classes(BINS, np.array([NO_LABEL] * 2), np.array([np.nan, 5], dtype=np.float32))
    assert classes.tolist() == [NO_LABEL, 20]


def test_expected_score_of_bins() -> None:
    logits = np.full((3, 21), -1e4, dtype=np.float32)
    logits[0, 20] = 7  # certain of 5
    logits[1, [0, 20]] = 3  # 1 or 5
    logits[2] = 0  # all bins alike
    assert predicted_scores(BINS, logits) == pytest.approx([5, 3, 3], abs=1e-5)


def test_targets_of_tasks() -> None:
    assert make_target(load_task("mnli")).names == ("entailment", "neutral", "contradiction")
    assert (BINS.kind, BINS.num_logits, BINS.names[0], BINS.names[1], BINS.names[-1]) == ("bins", 21, "1", "1.2", "5")
    score = make_target(STSB)
    assert (score.kind, score.num_logits) == ("score", 1)
    assert predicted_scores(score, np.array([[2.5], [-1]], dtype=np.float32)).tolist() == [2.5, -1]
    with pytest.raises(ConfigError, match=naming("--objective regression: ", "'cola'")):
        make_target(load_task("cola"), "regression")
    with pytest.raises(ConfigError, match=naming("--objective classification: ", "'stsb'", "`bins`")):
        make_target(STSB.model_copy(update={"bins": None}), "classification")


@pytest.mark.parametrize(
    ("task", "width", "kind"), [("stsb", 1, "score"), ("stsb", 21, "bins"), ("mnli", 3, "classes")]
)
def test_target_of_a_width(task: str, width: int, kind: str) -> None:
    target = target_of_width(load_task(task), width)
    assert target is not None
    assert target.kind == kind
    assert target_of_width(load_task(task), 7) is None


@given(hnp.arrays(np.float32, (4, 3), elements=st.floats(-1000, 1000, width=32)))
def test_softmax_is_a_distribution_that_keeps_the_order(logits: Floats) -> None:
    p = softmax(logits)
    assert p.sum(axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    assert (p[np.arange(4), logits.argmax(axis=1)] == p.max(axis=1)).all()


def test_gold_of_rows_with_gaps() -> None:
    table = pa.table({"label": pa.array([1, None], pa.int32()), "score": pa.array([None, 2.5], pa.float32())})
    label, score = gold_arrays(Target(kind="classes", names=("no", "yes")), table)
    assert label.tolist() == [1, NO_LABEL]
    assert np.isnan(score[0])
    assert score[1] == 2.5
