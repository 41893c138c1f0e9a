"""The distillation loss and its gradient in one call of C++ (``cpp/loss.cpp``): for few numbers, calls cost most.

Shapes: B batch, C logits.
"""

from typing import Any

import torch
from torch import Tensor

from student.kernels.arguments import pointer
from student.kernels.compiled import library


def can_do(logits_BC: Tensor) -> bool:
    """Whether these logits can be treated here."""
    return library() is not None and logits_BC.dtype == torch.float32 and logits_BC.device.type == "cpu"


def distillation_loss(
    logits_BC: Tensor,
    teacher_BC: Tensor,
    gold_B: Tensor,
    weight_B: Tensor | None,
    alpha: float,
    temperature: float,
    squared: bool,
) -> Tensor:
    """The loss of `student.train.losses`, a scalar; ``squared`` is its soft loss ``mse``."""
    settings = (alpha, temperature, squared)
    return _Loss.apply(logits_BC, teacher_BC, gold_B, weight_B, settings)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(torch.autograd.Function):
    """The gradient is worked out with the loss, and kept until it is asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_BC: Tensor,
        teacher_BC: Tensor,
        gold_B: Tensor,
        weight_B: Tensor | None,
        settings: tuple[float, float, bool],
    ) -> Tensor:
        num_rows, num_classes = logits_BC.shape
        if teacher_BC.shape != logits_BC.shape or gold_B.shape != (num_rows,):
            raise ValueError(f"logits {tuple(logits_BC.shape)}, teacher {tuple(teacher_BC.shape)}, gold {gold_B.shape}")
        if int(gold_B.amax()) >= num_classes:
            raise IndexError(f"a gold label is not one of {num_classes} classes")
        alpha, temperature, squared = settings
        gradient_BC = torch.empty_like(logits_BC, memory_format=torch.contiguous_format)
        arrays = (
            logits_BC.contiguous(),
            teacher_BC.float().contiguous(),
            gold_B.long().contiguous(),
            None if weight_B is None else weight_B.float().contiguous(),
        )
        loaded = library()
        assert loaded is not None, "whoever calls has looked"
        sizes = (num_rows, num_classes, alpha, temperature, squared)
        mean = loaded.distillation_loss(*map(pointer, arrays), *sizes, pointer(gradient_BC))
        ctx.save_for_backward(gradient_BC)
        return torch.tensor(mean, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_BC,) = ctx.saved_tensors
        return gradient_BC * grad, None, None, None, None
