"""Distillation losses of logits. Shapes: B batch, C logits."""

from collections.abc import Callable

import torch
from torch.nn import functional

from pipeline.tasks.target import NO_LABEL, Target
from student.kernels import native_training
from student.settings import SoftLoss

# A table and no comparison, so that a loss of another name is an error and never trains with this one.
IS_MSE: dict[SoftLoss, bool] = {"kl": False, "mse": True}
Divergence = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def task_loss(
    target: Target,
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_B: torch.Tensor,
    alpha: float,
    temperature: float = 1.0,
    soft_loss: SoftLoss = "kl",
    weight_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the mean loss of a batch, a scalar, by the function below for the target.

    Args:
        target: the meaning of the logits.
        logits_BC: see those functions, also for the other arguments.
        teacher_BC: the teacher's.
        gold_B: gold. For multi-label tasks [B, C].
        alpha: weight of the gold.
        temperature: ignored for a score.
        soft_loss: ignored for a score.
        weight_B: multiplies each row's loss.
    """
    # A score has no softmax, so temperature and the choice of soft loss have no meaning for it.
    if target.is_score:
        return score_loss(logits_BC, teacher_BC, gold_B, alpha, weight_B)
    loss = labels_loss if target.has_label_lists else distillation_loss
    return loss(logits_BC, teacher_BC, gold_B, alpha, temperature, soft_loss, weight_B)


def distillation_loss(
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_B: torch.Tensor,
    alpha: float,
    temperature: float = 1.0,
    soft_loss: SoftLoss = "kl",
    weight_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns alpha * CE(gold) + (1 - alpha) * soft, averaged over rows.

    Alpha 1 uses only gold, and alpha 0 only the teacher.

    A row without gold has only the teacher's term, with its full weight.

    Args:
        logits_BC: float32, the student's.
        teacher_BC: float32, the teacher's logits before softmax.
        gold_B: int64 classes, or ``NO_LABEL``.
        alpha: weight of the gold.
        temperature: T, for ``kl``.
        soft_loss: ``kl`` or ``mse``, see `soft_divergence` and `logit_error`.
        weight_B: float32, the weight of each row's loss. Default: 1.

    Returns:
        A scalar.
    """
    # A batch has few logits, so the dozen small torch operators cost more than the arithmetic. The C++ loss is one
    # call.
    if native_training.can_do(logits_BC):
        return native_training.distillation_loss(
            logits_BC, teacher_BC, gold_B, weight_B, alpha, temperature, IS_MSE[soft_loss]
        )
    return plain_loss(logits_BC, teacher_BC, gold_B, alpha, temperature, soft_loss, weight_B)


def plain_loss(
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_B: torch.Tensor,
    alpha: float,
    temperature: float,
    soft_loss: SoftLoss,
    weight_B: torch.Tensor | None,
) -> torch.Tensor:
    """Returns `distillation_loss`, a scalar, computed by torch's operators."""
    soft_B = _soft_term(soft_loss, soft_divergence, logits_BC, teacher_BC, temperature)
    # Reduction happens later: averaging here would divide by the rows with gold instead of by all rows.
    hard_B = functional.cross_entropy(logits_BC, gold_B, ignore_index=NO_LABEL, reduction="none")
    return _mean(_mix(hard_B, soft_B, gold_B != NO_LABEL, alpha), weight_B)


def soft_divergence(logits_BC: torch.Tensor, teacher_BC: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns T² * KL(teacher_T || student_T) of each row, in nats. Its gradient equals that of the cross-entropy.

    The divergence is summed over classes, as in the paper's formula. Its code averaged over them, which weakens the
    teacher's term C times. T² keeps the size of its gradient when T changes (Hinton et al. 2015).
    """
    log_student_BC = functional.log_softmax(logits_BC / temperature, dim=1)
    # Using logarithms on both sides avoids log(0) for classes whose teacher probability underflows.
    log_teacher_BC = functional.log_softmax(teacher_BC / temperature, dim=1)
    return (log_teacher_BC.exp() * (log_teacher_BC - log_student_BC)).sum(dim=1) * temperature**2


def logit_error(logits_BC: torch.Tensor, teacher_BC: torch.Tensor) -> torch.Tensor:
    """Returns the squared error of each row's logits, averaged over classes, as in the code of Tang et al. (2019)."""
    return ((logits_BC - teacher_BC) ** 2).mean(dim=1)


def labels_loss(
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_BC: torch.Tensor,
    alpha: float,
    temperature: float = 1.0,
    soft_loss: SoftLoss = "kl",
    weight_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns `distillation_loss` for independent labels: binary terms, averaged over labels.

    Args:
        logits_BC: float32, the student's.
        teacher_BC: float32, the teacher's logits before the sigmoid.
        gold_BC: int64, 1 if a label holds, otherwise 0. Rows without gold are ``NO_LABEL``.
        alpha: weight of the gold.
        temperature: T, for ``kl``.
        soft_loss: ``kl`` or ``mse``, see `binary_divergence` and `logit_error`.
        weight_B: float32, the weight of each row's loss. Default: 1.

    Returns:
        A scalar.
    """
    # A row has gold for all of its labels or for none, so the first column decides.
    known_B = gold_BC[:, 0] != NO_LABEL
    soft_B = _soft_term(soft_loss, binary_divergence, logits_BC, teacher_BC, temperature)
    # The placeholder for missing gold must be a valid target for BCE. Its term gets weight 0 in `_mix`.
    gold_BC = gold_BC.clamp(min=0).to(logits_BC.dtype)
    hard_B = functional.binary_cross_entropy_with_logits(logits_BC, gold_BC, reduction="none").mean(dim=1)
    return _mean(_mix(hard_B, soft_B, known_B, alpha), weight_B)


def binary_divergence(logits_BC: torch.Tensor, teacher_BC: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns `soft_divergence` of independent labels, averaged over labels: BCE with the teacher, less its entropy."""
    scaled_BC, p_BC = teacher_BC / temperature, (teacher_BC / temperature).sigmoid()
    bce = functional.binary_cross_entropy_with_logits
    # Subtracting the teacher's own entropy makes the loss 0 at agreement. The gradient does not change.
    difference_BC = bce(logits_BC / temperature, p_BC, reduction="none") - bce(scaled_BC, p_BC, reduction="none")
    return difference_BC.mean(dim=1) * temperature**2


def score_loss(
    logits_BC: torch.Tensor,
    teacher_BC: torch.Tensor,
    gold_B: torch.Tensor,
    alpha: float,
    weight_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns alpha * (s - gold)² + (1 - alpha) * (s - teacher)², averaged over rows, for a score s in column 0.

    A row without gold (NaN) has only the teacher's term. ``weight_B`` is the weight of each row's loss.
    """
    score_B, known_B = logits_BC[:, 0], gold_B.isfinite()
    # Replacing NaN before the square matters: 0 * NaN is NaN, also in the gradient.
    hard_B = (score_B - torch.where(known_B, gold_B, score_B.detach())) ** 2
    return _mean(_mix(hard_B, (score_B - teacher_BC[:, 0]) ** 2, known_B, alpha), weight_B)


def _soft_term(
    soft_loss: SoftLoss, divergence: Divergence, logits_BC: torch.Tensor, teacher_BC: torch.Tensor, temperature: float
) -> torch.Tensor:
    if IS_MSE[soft_loss]:
        return logit_error(logits_BC, teacher_BC)
    return divergence(logits_BC, teacher_BC, temperature)


def _mix(hard_B: torch.Tensor, soft_B: torch.Tensor, has_gold_B: torch.Tensor, alpha: float) -> torch.Tensor:
    # Without gold the teacher's term takes the whole weight, so that such rows count as much as the others.
    alpha_B = alpha * has_gold_B.to(soft_B.dtype)
    return alpha_B * hard_B + (1 - alpha_B) * soft_B


def _mean(loss_B: torch.Tensor, weight_B: torch.Tensor | None) -> torch.Tensor:
    return (loss_B if weight_B is None else loss_B * weight_B).mean()
