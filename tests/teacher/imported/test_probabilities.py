"""Numbers in, logits out: hand-computed, and as a property of every distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tasks.target import softmax
from teacher.imported.answer_rows import FLOOR, to_logits, wrong_numbers
from teacher.imported.import_settings import AnswersKind

NAMES = ("a", "b", "c")
GAP = float("nan")


def of(*numbers: float) -> np.ndarray:
    return np.array([numbers], dtype=np.float64)


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=6))
def test_the_softmax_of_the_logits_are_the_probabilities(weights: list[float]) -> None:
    probability_1C = of(*weights) / sum(weights)
    told: dict[AnswersKind, np.ndarray] = {"probabilities": probability_1C, "logprobs": np.log(probability_1C)}
    for kind, numbers_1C in told.items():
        assert wrong_numbers(kind, numbers_1C, "abcdef", may_spread=False) == {}
        assert softmax(to_logits(kind, numbers_1C)) == pytest.approx(probability_1C, abs=1e-5)


def test_logits_and_scores_stay_as_they_are() -> None:
    assert to_logits("logits", of(-3.5, 0, 12)).tolist() == [[-3.5, 0, 12]]
    assert to_logits("score", of(4.25)).tolist() == [[4.25]]


def test_nothing_is_impossible() -> None:
    assert to_logits("probabilities", of(1, 0, 0)) == pytest.approx(np.log(of(1, FLOOR, FLOOR)), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "numbers"), [("probabilities", (0.7, GAP, GAP)), ("logprobs", (np.log(0.7), GAP, GAP))]
)
def test_labels_that_are_not_named_share_what_is_left(kind: AnswersKind, numbers: tuple[float, ...]) -> None:
    assert softmax(to_logits(kind, of(*numbers))) == pytest.approx(of(0.7, 0.15, 0.15), abs=1e-6)


def test_of_labels_that_are_all_unlikely_the_likeliest_is_the_answer() -> None:
    assert softmax(to_logits("logprobs", of(-40, -41, -60)))[0, :2] == pytest.approx([0.7311, 0.2689], abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "numbers", "may_spread", "problem"),
    [
        ("logits", (1, GAP, 2), True, "no number for b"),
        ("probabilities", (0.5, GAP, GAP), False, "no number for b, c. Use --rest spread"),
        ("logprobs", (-0.5, -2, GAP), False, "no number for c. Use --rest spread"),
        ("probabilities", (0.5, 0.3, 0.1), False, "0.9"),
        ("probabilities", (0.9, 0.9, GAP), True, "1.8"),
        ("probabilities", (1.2, -0.2, 0), False, "probabilities"),
        ("logprobs", (0.3, -9, -9), False, "logprobs"),
        ("logprobs", (900, -9, -9), False, "logprobs"),
    ],
)
def test_what_cannot_be_meant_is_told(
    kind: AnswersKind, numbers: tuple[float, ...], may_spread: bool, problem: str
) -> None:
    whole = of(0.2, 0.3, 0.5) if kind == "probabilities" else np.log(of(0.2, 0.3, 0.5))
    wrong = wrong_numbers(kind, np.concatenate([whole, of(*numbers)]), NAMES, may_spread)
    assert wrong.keys() == {1}
    assert problem in wrong[1]


def test_rounded_probabilities_are_let_through() -> None:
    assert wrong_numbers("probabilities", of(0.33, 0.33, 0.33), NAMES, may_spread=False) == {}
