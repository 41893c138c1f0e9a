import math

import torch

from student.config import TrainConfig
from student.train.adadelta import AdaDelta

EPS = 1e-6


def test_two_steps_by_hand() -> None:
    weight = torch.tensor([1.0, 5.0], requires_grad=True)
    optimizer = AdaDelta([weight], lr=1.0)
    expected, of_gradient, of_moves = 1.0, 0.0, 0.0
    for gradient in (0.5, -2.0):
        weight.grad = torch.tensor([gradient, 0.0])
        optimizer.step()
        of_gradient = 0.95 * of_gradient + 0.05 * gradient**2
        move = math.sqrt(of_moves + EPS) / math.sqrt(of_gradient + EPS) * gradient
        of_moves = 0.95 * of_moves + 0.05 * move**2
        expected -= move
        torch.testing.assert_close(weight.detach(), torch.tensor([expected, 5.0]))


def test_gradients_are_clipped_to_a_norm() -> None:
    weights_ = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    for weight, gradient in zip(weights_, (3.0, 4.0), strict=True):
        weight.grad = torch.tensor([gradient])
    AdaDelta(weights_, lr=1.0).clip_gradients(1.0)
    torch.testing.assert_close([weight.grad for weight in weights_], [torch.tensor([0.6]), torch.tensor([0.8])])


def test_it_has_its_own_rate_unless_told() -> None:
    assert TrainConfig().peak_learning_rate == 5e-4
    assert TrainConfig(optimizer="adadelta").peak_learning_rate == 1.0
    assert TrainConfig(optimizer="adadelta", learning_rate=0.1).peak_learning_rate == 0.1
