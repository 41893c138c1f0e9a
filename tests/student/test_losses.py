import math

import pytest
import torch
from torch.nn import functional

from pipeline.targets import NO_LABEL
from student.losses import distillation_loss, score_loss

LN3, LN43 = math.log(3), math.log(4 / 3)
# Student [1/4, 3/4], gold class 1: CE = ln 4/3. Teacher [1/2, 1/2]: KL = 1/2 ln 2 + 1/2 ln 2/3 = 1/2 ln 4/3.
STUDENT, TEACHER, GOLD = torch.tensor([[0.0, LN3]]), torch.tensor([[5.0, 5.0]]), torch.tensor([1])


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, LN43), (0.0, LN43 / 2), (0.5, 0.75 * LN43)])
def test_alpha_weighs_gold_against_teacher(alpha: float, expected: float) -> None:
    assert distillation_loss(STUDENT, TEACHER, GOLD, alpha, 1.0).item() == pytest.approx(expected)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 4 * LN43 / 2), (1.0, math.log(10 / 9))])
def test_temperature_softens_the_teachers_term_alone_and_its_square_multiplies_it(
    alpha: float, expected: float
) -> None:
    twice = torch.tensor([[0.0, 2 * LN3]])  # softened by T = 2: [1/4, 3/4]; as it is: [1/10, 9/10]
    assert distillation_loss(twice, TEACHER, GOLD, alpha, 2.0).item() == pytest.approx(expected)


def test_the_teacher_is_softened_too() -> None:
    student, teacher = torch.zeros(1, 2), torch.tensor([[0.0, 2 * LN3]])  # softened by T = 2: [1/4, 3/4]
    kl = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert distillation_loss(student, teacher, GOLD, 0.0, 2.0).item() == pytest.approx(4 * kl)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_row_without_gold_takes_the_teachers_term_alone(alpha: float) -> None:
    no_gold = torch.tensor([NO_LABEL])
    assert distillation_loss(STUDENT, TEACHER, no_gold, alpha, 1.0).item() == pytest.approx(LN43 / 2)
    both = [torch.cat(pair) for pair in ((STUDENT, STUDENT), (TEACHER, TEACHER), (GOLD, no_gold))]
    mean = ((alpha + (1 - alpha) / 2) * LN43 + LN43 / 2) / 2
    assert distillation_loss(both[0], both[1], both[2], alpha, 1.0).item() == pytest.approx(mean)


def test_the_divergence_is_summed_over_classes_and_averaged_over_rows() -> None:
    student = torch.zeros(2, 4)
    teacher = torch.tensor([[60.0, 0, 0, 0], [0.0, 0, 0, 0]])  # certain: KL = ln 4; uniform: KL = 0
    loss = distillation_loss(student, teacher, torch.tensor([0, 0]), 0.0, 1.0)
    assert loss.item() == pytest.approx(math.log(4) / 2)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_gradient_is_that_of_soft_cross_entropy(temperature: float) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), torch.randn(5, 3).double()
    soft = functional.softmax(teacher / temperature, dim=1)
    ours = distillation_loss(student, teacher, torch.full((5,), NO_LABEL), 0.5, temperature)
    known = functional.cross_entropy(student / temperature, soft) * temperature**2
    gradients = [torch.autograd.grad(loss, student)[0] for loss in (ours, known)]
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().max() > 0.01


def test_extreme_logits_give_finite_losses_and_gradients() -> None:
    student = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = distillation_loss(student, -student.detach(), GOLD, 0.5, 1.0)
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.item() == pytest.approx(2e4)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, 9.0), (0.0, 1.0), (0.25, 3.0)])
def test_scores_are_squared_errors(alpha: float, expected: float) -> None:
    loss = score_loss(torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([5.0]), alpha)
    assert loss.item() == pytest.approx(expected)


def test_scores_without_gold_take_the_teachers_term_and_give_finite_gradients() -> None:
    student = torch.tensor([[2.0], [2.0]], requires_grad=True)
    loss = score_loss(student, torch.tensor([[3.0], [3.0]]), torch.tensor([float("nan"), 5.0]), 1.0)
    (gradient,) = torch.autograd.grad(loss, student)
    assert loss.item() == pytest.approx((1 + 9) / 2)
    assert gradient.tolist() == [[-1.0], [-3.0]]
