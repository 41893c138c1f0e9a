import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score

from pipeline.arrays import Floats, Ints
from pipeline.errors import IntegrityError
from pipeline.tasks.metrics import (
    bootstrap_intervals,
    class_summary,
    fidelity,
    majority_scores,
    score_logits,
    scores_by_label,
)
from pipeline.tasks.target import NO_LABEL, Target, gold_arrays, has_gold, sigmoid
from pipeline.tasks.task import Metric

TARGET = Target(kind="labels", names=("a", "b", "c"))
METRICS: tuple[Metric, ...] = ("micro_f1", "macro_f1")
LOGITS = np.array([[1, -1, -1], [1, 1, -1], [-1, 1, -1], [2, 2, 2]], np.float32)
# a: 2 of 2. b: 1 right, 2 predicted, 1 gold. c: 0 of 1
GOLD = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 1], [NO_LABEL] * 3])
NO_SCORES = np.full(4, np.nan, np.float32)


def test_lists_of_labels_as_arrays() -> None:
    rows = pa.table({"label": [[0, 2], [], None], "score": pa.nulls(3, pa.float32())})
    label_NC, _ = gold_arrays(TARGET, rows)
    assert label_NC.tolist() == [[1, 0, 1], [0, 0, 0], [NO_LABEL] * 3]
    assert has_gold(TARGET, label_NC, NO_SCORES[:3]).tolist() == [True, True, False]
    for strange in ([3], [-1], [None]):
        wrong = pa.table({"label": pa.array([strange], pa.list_(pa.int32())), "score": pa.nulls(1, pa.float32())})
        with pytest.raises(IntegrityError, match="3"):
            gold_arrays(TARGET, wrong)


def test_micro_and_macro_f1_by_hand() -> None:
    scores = score_logits(METRICS, TARGET, LOGITS, GOLD, NO_SCORES)
    assert scores == pytest.approx({"micro_f1": 2 * 3 / (4 + 4), "macro_f1": (1 + 2 / 3 + 0) / 3})
    assert score_logits(METRICS, TARGET, LOGITS[3:], GOLD[3:], NO_SCORES[3:]) == {}
    summary = class_summary(TARGET, LOGITS, GOLD)
    assert summary == {"macro_f1": scores["macro_f1"], "labels_in_gold": 3, "labels_predicted": 2}


@given(
    hnp.arrays(np.float32, (7, 3), elements=st.floats(-2, 2, width=32)),
    hnp.arrays(np.int64, (7, 3), elements=st.integers(0, 1)),
)
def test_f1_is_that_of_scikit_learn(logits: Floats, gold: Ints) -> None:
    scores = score_logits(METRICS, TARGET, logits, gold, np.full(7, np.nan, np.float32))
    there = gold.any(axis=0) | (logits > 0).any(axis=0)  # a label that is nowhere has no F1
    assume(there.sum() > 1)  # a single column is something else to scikit-learn
    sides = (gold[:, there], logits[:, there] > 0)
    known = {f"{kind}_f1": f1_score(*sides, average=kind, zero_division=0) for kind in ("micro", "macro")}
    assert scores == pytest.approx(known)


def test_intervals_hold_the_score_and_narrow_with_rows() -> None:
    few, many = (
        bootstrap_intervals(METRICS, TARGET, np.tile(LOGITS, (n, 1)), np.tile(GOLD, (n, 1)), np.tile(NO_SCORES, n))
        for n in (5, 80)
    )
    for name, value in score_logits(METRICS, TARGET, LOGITS, GOLD, NO_SCORES).items():
        assert few[name][0] < many[name][0] < value < many[name][1] < few[name][1]
    assert bootstrap_intervals(METRICS, TARGET, LOGITS[3:], GOLD[3:], NO_SCORES[3:]) == {}


def test_guessing_says_the_commonest_label_alone() -> None:
    assert majority_scores(METRICS, TARGET, GOLD, NO_SCORES) == pytest.approx(
        {"micro_f1": 2 * 2 / (3 + 4), "macro_f1": (4 / 5 + 0 + 0) / 3}
    )


def test_fidelity_by_hand() -> None:
    teacher, student = np.zeros((2, 3), np.float32) + 1e-6, np.full((2, 3), 1e-6, np.float32)
    student[0, 1] = -math.log(3)  # 1/4 against 1/2
    kl = (0.5 * math.log(2) + 0.5 * math.log(2 / 3)) / 6
    assert fidelity(TARGET, student, teacher) == pytest.approx({"agreement": 0.5, "kl": kl}, abs=1e-5)


def test_sigmoid_where_numbers_are_large() -> None:
    p = sigmoid(np.array([[-1000, -math.log(3), 0, math.log(3), 1000]], np.float32))
    assert p[0] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_scores_of_each_label_by_hand() -> None:
    target = Target(kind="classes", names=("a", "b", "c", "d"))
    said, gold = np.eye(4, dtype=np.float32)[[0, 0, 0, 1]], np.array([0, 0, 1, 2])
    by_label = scores_by_label(target, said, gold)
    assert by_label["a"] == pytest.approx({"precision": 2 / 3, "recall": 1, "f1": 0.8, "gold": 2, "predicted": 3})
    assert by_label["c"] == {"precision": 0, "recall": 0, "f1": 0, "gold": 1, "predicted": 0}
    assert by_label.keys() == {"a", "b", "c"}
    apart = scores_by_label(TARGET, LOGITS, GOLD)
    assert apart["b"] == pytest.approx({"precision": 0.5, "recall": 1, "f1": 2 / 3, "gold": 1, "predicted": 2})
