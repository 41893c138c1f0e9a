import math

import torch

from student.encoders.encoder import Encoder
from student.row_adam import make_optimizer
from student.settings import Optimizer

EPS = 1e-6


class OneTable(Encoder):
    """An encoder with a table of one row, and nothing else."""

    pad_id = 1

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1, 2, _weight=weight[None])

    def tables(self) -> list[torch.nn.Embedding]:
        return [self.table]

    def reduce(self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: object = None) -> torch.Tensor:
        raise NotImplementedError

    @property
    def multiply_adds(self) -> int:
        return 0


def test_two_steps_by_hand() -> None:
    encoder = OneTable(torch.tensor([1.0, 5.0]))
    weight = encoder.table.weight
    optimizer = make_optimizer(Optimizer(optimizer="adadelta", learning_rate=1.0, max_grad_norm=100.0), encoder)
    expected, of_gradient, of_moves = 1.0, 0.0, 0.0
    for gradient in (0.5, -2.0):
        optimizer.step((weight * torch.tensor([gradient, 0.0])).sum())
        of_gradient = 0.95 * of_gradient + 0.05 * gradient**2
        move = math.sqrt(of_moves + EPS) / math.sqrt(of_gradient + EPS) * gradient
        of_moves = 0.95 * of_moves + 0.05 * move**2
        expected -= move
        torch.testing.assert_close(weight.detach(), torch.tensor([[expected, 5.0]]))


def test_gradients_are_clipped_to_a_norm() -> None:
    encoder = OneTable(torch.zeros(2))
    encoder.table.weight.grad = torch.tensor([[3.0, 4.0]])
    make_optimizer(Optimizer(optimizer="adadelta", learning_rate=1.0, max_grad_norm=1.0), encoder).clip(1.0)
    torch.testing.assert_close(encoder.table.weight.grad, torch.tensor([[0.6, 0.8]]))


def test_it_has_its_own_rate_unless_told() -> None:
    assert Optimizer().rate == 5e-4
    assert Optimizer(optimizer="adadelta").rate == 1.0
    assert Optimizer(optimizer="adadelta", learning_rate=0.1).rate == 0.1
