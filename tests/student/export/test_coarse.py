import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from student.export.export import with_small_tables
from student.export.html_file import LARGEST, coarse, packed
from tests.helpers.toy_students import student

weights = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=st.floats(-2, 2, width=32))


@given(weights, st.floats(0.25, 4))
def test_no_number_is_further_away_than_half_a_step(weight_RF: np.ndarray, step: float) -> None:
    neutral_F = np.linspace(-1, 1, weight_RF.shape[1], dtype=np.float32)
    count_R = np.arange(1, len(weight_RF) + 1) ** 3
    made = packed(weight_RF, neutral_F, step, count_R)
    assert np.abs(made.numbers_RF).max() <= LARGEST
    error_RF = np.abs(made.values() - weight_RF)
    assert (error_RF <= 0.501 * made.step_R[:, None] + 1e-6).all()


def test_rows_of_frequent_tokens_are_finer_by_the_fourth_root() -> None:
    weight_RF = np.array([[1, -1], [-1, 1]], np.float32)  # of typical size 1
    made = packed(weight_RF, np.zeros(2, np.float32), 2.0, np.array([1, 16]))
    assert made.step_R.tolist() == pytest.approx([2 * np.sqrt(2), np.sqrt(2)])  # their geometric mean is 2
    assert made.numbers_RF.tolist() == [[0, 0], [-1, 1]]


def test_a_step_is_wide_enough_for_the_largest_number() -> None:
    made = packed(np.array([[14, 0.9, -3]], np.float32), np.zeros(3, np.float32), 0.01)
    assert made.step_R.tolist() == [2]
    assert made.numbers_RF.tolist() == [[7, 0, -2]]
    assert made.nibbles().tolist() == [[15 << 4 | 8, 6 << 4 | 8]]


def test_numbers_too_small_for_a_step_are_neutral() -> None:
    made = packed(np.array([[3e-45, 0, 0]], np.float32), np.zeros(3, np.float32), 0.5)
    assert made.values().tolist() == [[0, 0, 0]]


@given(weights)
def test_bytes_hold_the_numbers(weight_RF: np.ndarray) -> None:
    made = packed(weight_RF, np.zeros(weight_RF.shape[1], np.float32), 0.5)
    nibbles = made.nibbles()
    numbers = np.stack([nibbles >> 4, nibbles & 15], axis=-1).reshape(len(nibbles), -1).astype(int) - 8
    assert (numbers[:, : weight_RF.shape[1]] == made.numbers_RF).all()


def test_tokens_that_no_training_row_has_are_neutral() -> None:
    made = coarse(student(), np.array([9, 0, 3, 0, 0, 1, 0, 0, 0, 0]))
    assert made.ids_R.tolist() == [2, 5]  # not the padding, 0
    unknown, nothing = (made.student(torch.tensor([ids])) for ids in ([7, 1], [0]))
    assert torch.equal(unknown, nothing)
    assert not torch.equal(made.student(torch.tensor([[2]])), nothing)


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_what_is_rounded_is_near(head: str) -> None:
    whole = student(head=head, hidden_size=6 if head == "mlp" else None)
    made = coarse(whole, None)
    assert made.ids_R.tolist() == list(range(1, 10))
    ids = torch.randint(10, (50, 6))
    before, after = whole(ids), made.student(ids)
    assert (before - after).std() < 0.5 * before.std()
    assert (made.mlp is None) == (head == "linear")


def test_tables_that_are_small_already_can_be_rounded() -> None:
    small = with_small_tables(student(), "int8")
    ids = torch.randint(10, (50, 6))
    torch.testing.assert_close(
        coarse(small, None).student(ids), coarse(student(), None).student(ids), atol=0.2, rtol=0.2
    )
