"""Which points of a sweep are ahead of the others, by known answers."""

from typing import Any

import pytest

from student.summary import evaluation_tables, leading, tie


def point(rate: float, mean: float, deviation: float | None = None, seeds: int = 4) -> dict[str, Any]:
    scores = {str(seed): mean for seed in range(seeds)}
    return {"values": {"rate": rate}, "scores": scores, "mean": mean, "deviation": deviation}


@pytest.mark.parametrize(
    ("others", "count"),
    [
        ([point(2, 0.888, 0.02)], 2),  # 0.012 below, by a standard error of 0.014
        ([point(2, 0.885, 0.02)], 1),
        ([point(2, 0.888, 0.0)], 1),  # whose standard error is that of the best alone, 0.01
        ([point(2, 0.9, 0.02, seeds=3)], 1),  # a seed has failed
        ([point(k, 0.9, 0.02) for k in range(2, 6)], 5),
    ],
)
def test_means_within_the_standard_error_of_their_difference_tie(others: list[dict[str, Any]], count: int) -> None:
    points = [point(1, 0.9, 0.02), *others]
    assert leading(points[::-1]) == points[:count][::-1]
    tied = tie(points)
    assert (tied is None) == (count == 1)
    if tied is not None:
        named = [f"rate {one['values']['rate']}" in tied for one in points]
        assert named == [k < min(count, 3) for k in range(len(points))]
        assert ("2 more" in tied) == (count == 5)


def test_of_single_seeds_only_equal_ones_tie() -> None:
    points = [point(1, 0.9, seeds=1), point(2, 0.9, seeds=1), point(3, 0.8999, seeds=1)]
    assert leading(points) == points[:2]


def test_a_metric_of_the_task_has_one_row() -> None:
    both = {"accuracy": 0.8, "macro_f1": 0.5}
    parts = {"gold": both, "interval": {}, "teacher": {}, "majority": both, "glue": None, "bins": {}, "fidelity": {}}
    labels = {"macro_f1": 0.5, "labels_predicted": 2}
    tables = evaluation_tables({"test": parts | {"labels": labels}})
    assert [row[1] for row in tables["Against gold"][1]] == ["accuracy", "macro_f1"]
    assert [row[1] for row in tables["Other scores"][1]] == ["labels predicted"]
