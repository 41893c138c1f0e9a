"""The loss of masked positions, and its gradient with respect to the logits.

Shapes: P positions, V vocabulary, E kept entries of a distribution.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from pipeline.sets.codecs import Dense, Distribution, Kept

MOST_KEPT = 1 - 1e-6  # of the student's mass; its rest is divided by

Weight = float | torch.Tensor  # a scalar


def position_loss(
    logits_PV: torch.Tensor,
    target_P: torch.Tensor,
    teacher: Distribution,
    alpha: float,
    temperature: float,
    scale: Weight = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Alpha * CE(gold) + (1 - alpha) * T² * CE(teacher_T, student_T) of each position, nats.

    The cross-entropy with the teacher has the gradient of their divergence, and needs no entropy of a distribution of
    which only a part is stored.

    Args:
        logits_PV: float32 or float64, the student's.
        target_P: int64, what stood at the position.
        teacher: its distributions at ``temperature``.
        alpha: weight of the gold.
        temperature: T.
        scale: by which everything is multiplied.

    Returns:
        The losses [P], and the gradient of their sum with respect to the logits [P, V].
    """
    position_P = torch.arange(len(target_P), device=target_P.device)
    one_P = torch.ones_like(target_P, dtype=logits_PV.dtype)
    gold, soft = Kept(position_P, target_P, one_P, 0 * one_P), (1 - alpha) * temperature**2
    if alpha == 1:
        return cross_entropy(logits_PV, [(scale, gold)])
    if temperature == 1:
        return cross_entropy(logits_PV, [(alpha * scale, gold), (soft * scale, teacher)])
    hard_P, gradient_PV = cross_entropy(logits_PV, [(alpha * scale, gold)])
    soft_P, soft_PV = cross_entropy(logits_PV / temperature, [(soft * scale, teacher)])
    return hard_P + soft_P, gradient_PV.add_(soft_PV.div_(temperature))


def cross_entropy(
    logits_PV: torch.Tensor, weighted: Sequence[tuple[Weight, Distribution]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ weight * (-Σ p log q) over some distributions p; tokens that were not kept are one class together.

    Args:
        logits_PV: log q up to a constant, float32 or float64.
        weighted: each p with its weight.

    Returns:
        The losses [P], and the gradient of their sum with respect to the logits [P, V].
    """
    q_PV = logits_PV.softmax(dim=1)
    log_z_P = logits_PV.amax(dim=1) - q_PV.amax(dim=1).log()  # one pass less than logsumexp, and no exp
    terms = [(weight, *_term(logits_PV, log_z_P, p)) for weight, p in weighted]
    loss_P = sum((weight * term_P for weight, term_P, _, _ in terms), start=torch.zeros_like(log_z_P))
    mass_P = sum((weight * pull_P for weight, _, pull_P, _ in terms), start=torch.zeros_like(log_z_P))
    gradient_PV = q_PV.mul_(mass_P[:, None])
    for weight, _, _, pull in terms:
        _subtract(gradient_PV, weight, pull)
    return loss_P, gradient_PV


def _term(
    logits_PV: torch.Tensor, log_z_P: torch.Tensor, p: Distribution
) -> tuple[torch.Tensor, torch.Tensor, Distribution]:
    """-Σ p log q [P], and its gradient: q times a mass [P], less what pulls at single tokens."""
    if isinstance(p, Dense):
        return log_z_P - (p.probability_PV * logits_PV).sum(dim=1), torch.ones_like(log_z_P), p
    log_q_E = logits_PV[p.position_E, p.token_E] - log_z_P[p.position_E]
    kept_P = torch.zeros_like(log_z_P).index_add(0, p.position_E, p.probability_E * log_q_E)
    loss_P, pull_E = -kept_P, p.probability_E
    if p.rest_P.any():
        q_E = log_q_E.exp()
        mass_P = torch.zeros_like(log_z_P).index_add(0, p.position_E, q_E)
        free_P = 1 - mass_P.clamp(max=MOST_KEPT)
        loss_P = loss_P - p.rest_P * free_P.log()
        odds_P = (p.rest_P / free_P).where(mass_P < MOST_KEPT, 0)
        pull_E = pull_E - odds_P[p.position_E] * q_E
    return loss_P, torch.zeros_like(log_z_P).index_add(0, p.position_E, pull_E), replace(p, probability_E=pull_E)


def _subtract(gradient_PV: torch.Tensor, weight: Weight, pull: Distribution) -> None:
    if isinstance(pull, Dense):
        gradient_PV.sub_(weight * pull.probability_PV)
    else:
        gradient_PV.index_put_((pull.position_E, pull.token_E), -weight * pull.probability_E, accumulate=True)
