import json
import math
from typing import Any

import numpy as np
import pytest

from distill.apps.serve.answers import Ranking, Scale, rankings
from distill.apps.serve.http import RefusedError
from pipeline.tasks.target import Target
from pipeline.tasks.task import Bins

MOODS = Target(kind="classes", names=("bad", "so so", "good"))
LOGITS_23 = np.array([[0, math.log(2), math.log(5)], [1, 1, 1]], dtype=np.float32)


def read(ranking: Ranking) -> list[dict[str, Any]]:
    return [json.loads(one) for one in ranking]


def scores(ranking: Ranking) -> list[tuple[object, float]]:
    return [(one["label"], round(float(one["score"]), 6)) for one in read(ranking)]


def test_probabilities_come_with_the_highest_first_and_equal_ones_in_the_order_of_labels() -> None:
    first, second = rankings(MOODS, LOGITS_23)
    assert scores(first) == [("good", 0.625), ("so so", 0.25), ("bad", 0.125)]
    assert [label for label, _ in scores(second)] == ["bad", "so so", "good"]


@pytest.mark.parametrize(
    ("scale", "expected"), [("none", [math.log(5), math.log(2), 0]), ("sigmoid", [5 / 6, 2 / 3, 1 / 2])]
)
def test_other_scales(scale: Scale, expected: list[float]) -> None:
    first, _ = rankings(MOODS, LOGITS_23, scale)
    assert [one["score"] for one in read(first)] == pytest.approx(expected, abs=1e-6)


def test_labels_and_tiny_scores_are_written_as_json_has_them() -> None:
    odd = Target(kind="classes", names=('say "hi"', "naïve\\\n"))
    (answer,) = rankings(odd, np.array([[0, -40]], dtype=np.float32))
    assert scores(answer) == [('say "hi"', 1), ("naïve\\\n", 0)]
    assert 0 < read(answer)[1]["score"] < 1e-16


def test_a_score_is_one_number() -> None:
    (answer,) = rankings(Target(kind="score", names=("score",)), np.array([[2.5]], dtype=np.float32))
    assert read(answer) == [{"score": 2.5, "label": "score"}]
    bins = Target(kind="bins", names=("1", "2"), bins=Bins(low=1, high=2, width=1))
    (answer,) = rankings(bins, np.array([[0, math.log(3)]], dtype=np.float32))
    assert scores(answer) == [("score", 1.75)]


def test_what_is_no_number_is_told_as_an_error() -> None:
    with pytest.raises(RefusedError, match="NaN") as refused:
        rankings(MOODS, np.array([[0, np.nan, 0]], dtype=np.float32))
    assert (refused.value.status, refused.value.kind) == (424, "Backend")
