"""Distillation losses. Shapes: B batch, C logits."""

import torch
from torch.nn import functional

from pipeline.targets import NO_LABEL


def distillation_loss(
    logits_BC: torch.Tensor, teacher_BC: torch.Tensor, gold_B: torch.Tensor, alpha: float, temperature: float
) -> torch.Tensor:
    """Alpha * CE(gold) + (1 - alpha) * T² * KL(teacher_T || student_T), averaged over rows.

    The divergence is summed over classes (the paper's formula; its code averaged over them, which weakens the teacher's
    term C times). T² keeps the size of its gradient when T changes (Hinton et al. 2015). A row without gold takes the
    teacher's term alone.

    Args:
        logits_BC: float32, the student's.
        teacher_BC: float32, the teacher's, before softmax.
        gold_B: int64 classes, ``NO_LABEL`` where there is none.
        alpha: weight of the gold.
        temperature: T.

    Returns:
        A scalar, nats.
    """
    log_student_BC = functional.log_softmax(logits_BC / temperature, dim=1)
    log_teacher_BC = functional.log_softmax(teacher_BC / temperature, dim=1)
    soft_B = (log_teacher_BC.exp() * (log_teacher_BC - log_student_BC)).sum(dim=1) * temperature**2
    hard_B = functional.cross_entropy(logits_BC, gold_B, ignore_index=NO_LABEL, reduction="none")
    return _mix(hard_B, soft_B, gold_B != NO_LABEL, alpha)


def score_loss(logits_BC: torch.Tensor, teacher_BC: torch.Tensor, gold_B: torch.Tensor, alpha: float) -> torch.Tensor:
    """Alpha * (s - gold)² + (1 - alpha) * (s - teacher)², averaged over rows, for a score s in column 0.

    A row without gold (NaN) takes the teacher's term alone.
    """
    score_B, known_B = logits_BC[:, 0], gold_B.isfinite()
    hard_B = (score_B - torch.where(known_B, gold_B, score_B.detach())) ** 2
    return _mix(hard_B, (score_B - teacher_BC[:, 0]) ** 2, known_B, alpha)


def _mix(hard_B: torch.Tensor, soft_B: torch.Tensor, has_gold_B: torch.Tensor, alpha: float) -> torch.Tensor:
    alpha_B = alpha * has_gold_B.to(soft_B.dtype)
    return (alpha_B * hard_B + (1 - alpha_B) * soft_B).mean()
