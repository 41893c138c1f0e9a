import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teacher.models.batches import FULL_BATCH, token_budget_batches


@given(lengths=st.lists(st.integers(1, 60), max_size=200), budget=st.integers(1, 300))
def test_every_row_once_and_within_budget(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget


@given(lengths=st.lists(st.integers(0, 9), max_size=50), budget=st.integers(1, 40))
def test_longest_first_and_rows_of_a_length_in_order(lengths: list[int], budget: int) -> None:
    flat = [row for batch in token_budget_batches(lengths, budget) for row in batch]
    assert flat == sorted(flat, key=lambda row: (-lengths[row], row))


def cost(batches: list[list[int]], lengths: list[int], budget: int) -> int:
    return sum(FULL_BATCH * len(batch) * max(lengths[row] for row in batch) + budget for batch in batches)


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=9), budget=st.integers(1, 150))
def test_no_other_cut_of_the_sorted_rows_costs_less(lengths: list[int], budget: int) -> None:
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    least = min(
        cost(cut, lengths, budget)
        for places in itertools.product([False, True], repeat=len(order) - 1)
        for cut in [[order[a:b] for a, b in itertools.pairwise([0, *_true(places), len(order)])]]
        if all(len(batch) == 1 or len(batch) * lengths[batch[0]] <= budget for batch in cut)
    )
    assert cost(token_budget_batches(lengths, budget), lengths, budget) == least


def _true(places: tuple[bool, ...]) -> list[int]:
    return [number for number, cut in enumerate(places, start=1) if cut]


@pytest.mark.parametrize(
    ("lengths", "budget", "expected"),
    [
        ([3, 5, 4], 10, [[1], [2], [0]]),  # 12 + 3 * 10 / 16 is less than 13 + 2 * 10 / 16
        ([7], 2, [[0]]),
        ([2, 2, 2], 4, [[0], [1, 2]]),
        ([], 8, []),
        ([9, 1, 1, 1], 36, [[0], [1, 2, 3]]),  # 12 + 2 * 36 / 16 is less than 36 + 36 / 16
        ([9, 8, 9, 9], 36, [[0, 2, 3, 1]]),  # 1 token of padding is less than 36 / 16
    ],
)
def test_known_answers(lengths: list[int], budget: int, expected: list[list[int]]) -> None:
    assert token_budget_batches(lengths, budget) == expected
