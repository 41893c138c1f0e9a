"""The loss of masked positions, without ever building all positions times the vocabulary.

Shapes: P positions, F features, V vocabulary, E kept entries of the teacher's distributions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.functional import pad

from pipeline.logit_set.codecs import Dense, Distribution

CHUNK = 512  # positions at once: 62 MB of logits for BERT's vocabulary
STEP = 64  # their number is rounded up to so many: oneDNN keeps compiled code for each shape it has seen

PositionLoss = Callable[[torch.Tensor, slice], torch.Tensor]


def position_loss(
    logits_PV: torch.Tensor, target_P: torch.Tensor, teacher: Distribution, alpha: float, temperature: float
) -> torch.Tensor:
    """Alpha * CE(gold) + (1 - alpha) * T² * CE(teacher_T, student_T) of each position [P], nats.

    The cross-entropy with the teacher has the gradient of their divergence, and needs no entropy of a distribution of
    which only a part is stored.

    Args:
        logits_PV: float32, the student's.
        target_P: int64, what stood at the position.
        teacher: its distributions at ``temperature``.
        alpha: weight of the gold.
        temperature: T.
    """
    hard_P = functional.cross_entropy(logits_PV, target_P, reduction="none")
    if alpha == 1:
        return hard_P
    return alpha * hard_P + (1 - alpha) * temperature**2 * teacher_cross_entropy(logits_PV / temperature, teacher)


def teacher_cross_entropy(logits_PV: torch.Tensor, teacher: Distribution) -> torch.Tensor:
    """-Σ p log q of each position [P]; tokens that were not kept are one class together.

    Args:
        logits_PV: the student's, divided by the temperature.
        teacher: p.
    """
    log_z_P = logits_PV.logsumexp(dim=1)
    if isinstance(teacher, Dense):
        return log_z_P - (teacher.probability_PV.to(logits_PV.device) * logits_PV).sum(dim=1)
    row_E, token_E, p_E, rest_P = (
        part.to(logits_PV.device)
        for part in (teacher.position_E, teacher.token_E, teacher.probability_E, teacher.rest_P)
    )
    log_q_E = logits_PV[row_E, token_E] - log_z_P[row_E]
    kept_P = torch.zeros_like(log_z_P).index_add(0, row_E, p_E * log_q_E)
    if not rest_P.any():
        return -kept_P
    kept_mass_P = torch.zeros_like(log_z_P).index_add(0, row_E, log_q_E.exp())
    return -kept_P - rest_P * torch.log1p(-kept_mass_P.clamp(max=1 - 1e-6))


def chunked_loss(
    features_PF: torch.Tensor,
    weight_VF: torch.Tensor,
    bias_V: torch.Tensor,
    position_loss_of: PositionLoss,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The sum over positions of a loss of logits_PV = features_PF @ weight_VF.T + bias_V.

    Logits and their gradient exist for `CHUNK` positions at a time: the gradients of features, weight and bias are
    worked out on the way, each chunk's matrix read once, which also saves a second forward pass.

    Args:
        features_PF: float32.
        weight_VF: float32.
        bias_V: float32.
        position_loss_of: loss_P of the logits of a slice of positions.
        dtype: of the matrix products; sums are float32.

    Returns:
        A scalar, float32.
    """
    apply: Callable[..., torch.Tensor] = _ChunkedLoss.apply
    return apply(features_PF, weight_VF, bias_V, position_loss_of, dtype)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_PF: torch.Tensor,
        weight_VF: torch.Tensor,
        bias_V: torch.Tensor,
        position_loss_of: PositionLoss,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        total = features_PF.new_zeros(())
        weight = weight_VF.to(dtype)
        d_features_PF, d_weight_VF, d_bias_V = map(torch.zeros_like, (features_PF, weight_VF, bias_V))
        for start in range(0, len(features_PF), CHUNK):
            part = slice(start, min(start + CHUNK, len(features_PF)))
            num_positions = part.stop - part.start
            features = pad(features_PF[part].to(dtype), (0, 0, 0, -num_positions % STEP))
            logits_PV = (features @ weight.T)[:num_positions].float() + bias_V
            with torch.enable_grad():
                loss = position_loss_of(logits_PV.requires_grad_(), part).sum()
                (d_logits_PV,) = torch.autograd.grad(loss, logits_PV)
            total += loss.detach()
            d_bias_V += d_logits_PV.sum(dim=0)
            d_logits = pad(d_logits_PV.to(dtype), (0, 0, 0, len(features) - num_positions))
            d_features_PF[part] = (d_logits @ weight)[:num_positions]
            d_weight_VF += d_logits.T @ features
        ctx.save_for_backward(d_features_PF, d_weight_VF, d_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, *d_loss: torch.Tensor) -> Any:
        return *(part.mul_(d_loss[0]) for part in ctx.saved_tensors), None, None
