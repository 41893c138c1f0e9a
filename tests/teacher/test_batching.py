import pytest
from hypothesis import given
from hypothesis import strategies as st

from teacher.batching import token_budget_batches


@given(lengths=st.lists(st.integers(1, 60), max_size=200), budget=st.integers(1, 300))
def test_every_row_once_and_within_budget(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [([3, 5, 4], 10, [[1, 2], [0]]), ([7], 2, [[0]]), ([2, 2, 2], 4, [[0, 1], [2]]), ([], 8, [])],
)
def test_known_answers(lengths: list[int], budget: int, expected: list[list[int]]) -> None:
    assert token_budget_batches(lengths, budget) == expected
