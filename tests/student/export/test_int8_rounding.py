import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from student.export.int8_rounding import COARSE_MAX, CoarseRounding, Rounding, coarse_steps, exact_steps, is_exact

weights = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=st.floats(-2, 2, width=32))


@given(weights, st.floats(0.25, 4))
def test_no_number_is_further_away_than_half_a_step(weight_RF: np.ndarray, step: float) -> None:
    values_RF = torch.from_numpy(weight_RF)
    step_R1 = coarse_steps(values_RF, step, np.arange(len(weight_RF)) ** 3).unsqueeze(1)
    numbers_RF = (values_RF / step_R1).round()
    assert numbers_RF.abs().max() <= COARSE_MAX
    assert ((numbers_RF * step_R1 - values_RF).abs() <= 0.501 * step_R1 + 1e-6).all()


def test_rows_of_frequent_tokens_are_finer_by_the_fourth_root() -> None:
    rounding = CoarseRounding(np.array([7, 16, 1]))
    values_RF = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])  # of typical size 1
    rows_R, matrices_R = (rounding.rows(values_RF, torch.tensor([2, 1]), is_matrix) for is_matrix in (False, True))
    assert rows_R.tolist() == pytest.approx([1.75 * np.sqrt(2), 1.75 / np.sqrt(2)])  # their geometric mean is 1.75
    assert (matrices_R / rows_R).tolist() == pytest.approx([3.25 / 1.75] * 2)
    assert rounding.rows(values_RF).tolist() == [1.75, 1.75]
    assert rounding.layer(values_RF).tolist() == [1, 1]


def test_a_step_is_wide_enough_for_the_largest_number() -> None:
    assert coarse_steps(torch.tensor([[14, 0.9, -3]]), 0.01).tolist() == [2]
    assert coarse_steps(torch.zeros(2, 3), 0.5).tolist() == [0.5, 0.5]
    assert coarse_steps(torch.tensor([[3e-45, 0, 0]]), 0.5)[0] > 1e-38


def test_rows_of_tokens_that_no_training_row_has_are_left_out() -> None:
    token_R = torch.tensor([0, 2, 3, 5])
    assert CoarseRounding(np.array([0, 0, 3, 0, 4, 1])).kept(token_R, 0).tolist() == [0, 2, 5]
    assert CoarseRounding(None).kept(token_R, 0).tolist() == [0, 2, 3, 5]
    assert Rounding().kept(token_R, 0).tolist() == [0, 2, 3, 5]


def test_a_step_is_the_largest_power_of_two_that_divides_a_row() -> None:
    values_RF = torch.tensor([[0.75, -0.5], [96, 160], [-(2.0**-140), 0], [0, 0], [1 + 2**-23, 1]])
    assert exact_steps(values_RF).tolist() == [0.25, 32, 2.0**-140, np.inf, 2**-23]
    assert [is_exact(row.unsqueeze(0)) for row in values_RF] == [True, True, True, True, False]


@given(arrays(np.int8, (3, 5)), st.lists(st.integers(-100, 100), min_size=3, max_size=3))
def test_multiples_of_a_power_of_two_stay_the_same(number_RF: np.ndarray, exponents: list[int]) -> None:
    number_RF = np.maximum(number_RF, -127)
    value_RF = torch.from_numpy(np.ldexp(number_RF.astype(np.float32), np.array(exponents)[:, None]))
    scale_R1 = Rounding().rows(value_RF).unsqueeze(1)
    assert is_exact(value_RF)
    assert torch.equal((value_RF / scale_R1).round().to(torch.int8) * scale_R1, value_RF)


def test_the_largest_number_of_other_rows_becomes_127() -> None:
    assert Rounding().layer(torch.tensor([[0.1, -254], [0, 0]])).tolist() == [2, 1]
