import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from student.losses.layers import (
    TEMPERATURE,
    contrast_error,
    direction_error,
    relations,
    score_error,
    share_divergence,
    state_error,
)


def test_error_of_states_is_a_mean_over_the_tokens_of_each_sequence() -> None:
    student_TH, teacher_TH = torch.zeros(3, 2), torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 4.0]])
    assert state_error(student_TH, teacher_TH, torch.tensor([0, 1, 3])).tolist() == [5, (2 + 8) / 2]


def test_error_of_directions_does_not_know_lengths() -> None:
    student_TH, teacher_TH = torch.tensor([[2.0, 0.0], [3.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 7.0]])
    assert direction_error(student_TH, teacher_TH, torch.tensor([0, 1, 2])).tolist() == pytest.approx([0, 2])


def test_error_of_scores_by_hand() -> None:
    student, teacher = torch.zeros(1, 2, 2, 2), torch.tensor([[[[1.0, 0], [0, 0]], [[0, 2.0], [0, 0]]]])
    assert score_error(student, teacher, torch.tensor([[True, True]])).tolist() == [(1 + 4) / 8]


def test_divergence_of_shares_by_hand() -> None:
    teacher = torch.tensor([[[[math.log(3), 0.0], [0.0, 0.0]]]])
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    found = share_divergence(torch.zeros(1, 1, 2, 2), teacher, torch.tensor([[True, True]]))
    assert found.tolist() == pytest.approx([by_hand / 2])


def test_contrast_by_hand() -> None:
    likeness = torch.tensor([[0.0, TEMPERATURE * math.log(3), 0.0], [1.0, 0.0, 1.0]])
    found = contrast_error(likeness, torch.tensor([[1, 0, 0], [0, 2, 2]]))
    assert found.tolist() == pytest.approx([-math.log(3 / 5), -math.log(1 / 3)])


def test_relations_of_values_by_hand() -> None:
    values = torch.tensor([[[[1.0, 0, 0, 0], [2.0, 2, 0, 0]]]])
    assert relations(values).tolist() == [[[[0.5, 1], [1, 4]]]]


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**31))
def test_padding_changes_nothing(length: int, padding: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, 1, 3, length + padding, length + padding, generator=generator) * 5
    student.requires_grad_()
    is_token = torch.arange(length + padding)[None] < length
    for loss in (score_error, share_divergence):
        padded = loss(student, teacher, is_token)
        bare = loss(student[..., :length, :length], teacher[..., :length, :length], is_token[:, :length])
        torch.testing.assert_close(padded, bare)
        (gradient,) = torch.autograd.grad(padded.sum(), student)
        assert gradient.isfinite().all()
        assert (gradient[..., length:] == 0).all()
