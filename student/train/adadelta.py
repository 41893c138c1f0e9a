"""AdaDelta, by which Tang et al. (2019) trained their students."""

from collections.abc import Iterable

import torch

RHO = 0.95


class AdaDelta(torch.optim.Adadelta):
    """`torch.optim.Adadelta` with what else a student's learner asks of its optimizer.

    Rows of tables that a batch does not use have no gradient, and stay where they are.

    Args:
        parameters: what is trained.
        lr: the learning rate; may be changed from step to step.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(parameters, lr=lr, rho=RHO)

    def clip_gradients(self, max_norm: float) -> None:
        """Scales all gradients so that their norm is at most this."""
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], max_norm)

    def catch_up(self) -> None:
        """Does nothing: no step puts work off."""
