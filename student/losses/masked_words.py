"""The loss of masked words, and the forward and backward pass of the prediction head, a chunk of positions at a time.

The gradient is computed while a chunk's logits are in memory, as in fused linear cross-entropy (Hsu et al. 2024, Liger
Kernel). Logits of all positions therefore never exist together, and are never computed twice.

Shapes: P positions, F features, V vocabulary, E kept entries of a distribution, G the features, a 1 for the bias, and
zeros up to a round number.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pipeline.sets.codecs import Dense, Distribution, Sparse

# The student's probability outside the stored tokens is a divisor, so it must not reach 0.
MOST_KEPT = 1 - 1e-6
# The logits of 512 positions take 31 MB in bfloat16 for BERT's vocabulary, whatever the size of the batch.
CHUNK = 512
# The float32 logits of 16 positions fit a core's cache, where softmax and gradient read them several times.
ROWS = 16
# Blocks of 2,048 words bound the temporary copy of the transposed gradient and its product.
WORDS = 2048
# Matrix units prefer multiples of 64, and few distinct shapes let oneDNN reuse its compiled primitives.
STEP = 64

# With several processes the scale is a tensor on the device, because reading it would wait for a GPU.
Weight = float | torch.Tensor
TeacherOf = Callable[[slice], Distribution]


class WithGradient(torch.autograd.Function):
    """A loss whose gradient was computed with it."""

    @staticmethod
    def forward(ctx: Any, features_PF: torch.Tensor, loss: torch.Tensor, d_features_PF: torch.Tensor) -> torch.Tensor:
        # Autograd cannot differentiate the in-place arithmetic of `HeadPass`, so its gradient is passed in ready-made.
        ctx.save_for_backward(d_features_PF)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, d_loss: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (d_features_PF,) = ctx.saved_tensors
        return d_loss * d_features_PF, None, None


class HeadPass:
    """A head's loss and gradients. It reuses its memory from step to step, because new memory is expensive.

    Args:
        head: a linear layer from F features to V words, float32.
        dtype: of the matrix products. Softmax, losses and sums over chunks are float32.
    """

    def __init__(self, head: nn.Linear, dtype: torch.dtype) -> None:
        self._head = head
        num_words, num_features = head.weight.shape
        # The extra column holds the bias, so that one matrix product computes logits, and another one all gradients.
        width = -(-(num_features + 1) // 32) * 32
        # Zeros matter: columns between the bias and the rounded width are never written and must add nothing.
        new = head.weight.detach().new_zeros
        self._weight_VG = new(num_words, width, dtype=dtype)
        self._features_PG = new(CHUNK, width, dtype=dtype)
        self._logits_PV = new(CHUNK, num_words, dtype=dtype)
        self._turned_VP = new(WORDS, CHUNK, dtype=dtype)
        self._d_block_VG = new(WORDS, width, dtype=dtype)
        self._d_weight_VF, self._d_bias_V = new(num_words, num_features), new(num_words)

    def loss(
        self,
        features_PF: torch.Tensor,
        target_P: torch.Tensor,
        teacher_of: TeacherOf,
        alpha: float,
        temperature: float,
        scale: Weight = 1.0,
    ) -> torch.Tensor:
        """Returns the mean loss of positions, and stores its gradients with respect to the head in ``grad``.

        They replace older gradients. ``backward`` must be called on the loss itself, not on a multiple.

        Args:
            features_PF: float32, the head's input, with at least one position.
            target_P: int64, the masked token at each position.
            teacher_of: returns the teacher's distributions at the positions of a slice.
            alpha: weight of the gold.
            temperature: T.
            scale: the factor of the loss.

        Returns: The sum of the positions' losses (`position_loss`) times the scale, a float32 scalar with a graph.
        """
        d_features_PF = torch.empty_like(features_PF)
        total = features_PF.new_zeros(())
        # A graph would keep every chunk's logits alive until the backward pass, which this class exists to avoid.
        with torch.no_grad():
            num_features = features_PF.shape[1]
            # The optimizer has changed the weights since the last step, so the low-precision copy is refreshed.
            self._weight_VG[:, :num_features] = self._head.weight
            self._weight_VG[:, num_features] = self._head.bias
            self._features_PG[:, num_features] = 1
            for start in range(0, len(features_PF), CHUNK):
                part = slice(start, min(start + CHUNK, len(features_PF)))
                d_logits_PV = self._logits(features_PF[part])
                teacher = teacher_of(part).to(features_PF.device)
                total += _to_gradient(
                    d_logits_PV[: part.stop - start], target_P[part], teacher, alpha, temperature, scale
                )
                # Rows of padding up to the rounded size hold logits of the bias, which must not reach the gradients.
                d_logits_PV[part.stop - start :] = 0
                d_features_PF[part] = (d_logits_PV @ self._weight_VG)[: part.stop - start, :num_features]
                # The first chunk overwrites the sums of the last step, which saves a pass that sets them to zero.
                self._add_up(d_logits_PV, first=start == 0)
        # The gradients are assigned directly, because the graph contains only the path to the features.
        self._head.weight.grad, self._head.bias.grad = self._d_weight_VF, self._d_bias_V
        return WithGradient.apply(features_PF, total, d_features_PF)  # type: ignore[no-any-return,no-untyped-call]

    def _logits(self, features_PF: torch.Tensor) -> torch.Tensor:
        """Returns the logits of a chunk, padded to a round number of positions."""
        num_positions, num_features = features_PF.shape
        self._features_PG[:num_positions, :num_features] = features_PF
        rounded = -(-num_positions // STEP) * STEP
        return torch.mm(self._features_PG[:rounded], self._weight_VG.T, out=self._logits_PV[:rounded])

    def _add_up(self, d_logits_PV: torch.Tensor, first: bool) -> None:
        """Adds a chunk's part to the gradients of weight and bias, some words at a time."""
        features_PG = self._features_PG[: len(d_logits_PV)]
        num_features = self._d_weight_VF.shape[1]
        for start in range(0, len(self._d_bias_V), WORDS):
            d_part_PV = d_logits_PV[:, start : start + WORDS]
            # The product needs the words as rows. A transposed copy keeps both operands contiguous.
            turned_VP = self._turned_VP[: d_part_PV.shape[1], : len(d_part_PV)].copy_(d_part_PV.T)
            d_block_VG = torch.mm(turned_VP, features_PG, out=self._d_block_VG[: len(turned_VP)])
            for sums, block in (
                (self._d_weight_VF, d_block_VG[:, :num_features]),
                (self._d_bias_V, d_block_VG[:, num_features]),
            ):
                words = sums[start : start + WORDS]
                words.copy_(block) if first else words.add_(block)


def _to_gradient(
    logits_PV: torch.Tensor,
    target_P: torch.Tensor,
    teacher: Distribution,
    alpha: float,
    temperature: float,
    scale: Weight,
) -> torch.Tensor:
    """Replaces logits by the gradient with respect to them. Returns the sum of the losses."""
    total = logits_PV.new_zeros((), dtype=torch.float32)
    # A GPU has no cache per core to respect, and small slices would cost one kernel launch each.
    rows = ROWS if logits_PV.device.type == "cpu" else CHUNK
    for start in range(0, len(logits_PV), rows):
        part_PV = logits_PV[start : start + rows]
        part = teacher.part(start, start + len(part_PV))
        loss_P, d_part_PV = position_loss(
            part_PV.float(), target_P[start : start + rows], part, alpha, temperature, scale
        )
        part_PV.copy_(d_part_PV)
        total += loss_P.sum()
    return total


def position_loss(
    logits_PV: torch.Tensor,
    target_P: torch.Tensor,
    teacher: Distribution,
    alpha: float,
    temperature: float,
    scale: Weight = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns alpha * CE(gold) + (1 - alpha) * T² * CE(teacher_T, student_T) of each position, in nats.

    The cross-entropy with the teacher has the same gradient as the divergence, and does not need the entropy of a
    partly stored distribution.

    Args:
        logits_PV: float32 or float64, the student's logits.
        target_P: int64, the masked token at each position.
        teacher: its distributions at ``temperature``.
        alpha: weight of the gold.
        temperature: T.
        scale: the factor of losses and gradient.

    Returns:
        The losses [P], and the gradient of their sum with respect to the logits [P, V].
    """
    position_P = torch.arange(len(target_P), device=target_P.device)
    one_P = torch.ones_like(target_P, dtype=logits_PV.dtype)
    # Gold is a sparse distribution with one entry and no rest, so gold and teacher share one implementation.
    gold, soft = Sparse(position_P, target_P, one_P, 0 * one_P), (1 - alpha) * temperature**2
    if alpha == 1:
        return cross_entropy(logits_PV, [(scale, gold)])
    # At T = 1 gold and teacher share one softmax, which is the most expensive part of the loss.
    if temperature == 1:
        return cross_entropy(logits_PV, [(alpha * scale, gold), (soft * scale, teacher)])
    hard_P, gradient_PV = cross_entropy(logits_PV, [(alpha * scale, gold)])
    soft_P, soft_PV = cross_entropy(logits_PV / temperature, [(soft * scale, teacher)])
    # The chain rule of logits / T divides by T once. T² is already part of the weight (Hinton et al. 2015).
    return hard_P + soft_P, gradient_PV.add_(soft_PV.div_(temperature))


def cross_entropy(
    logits_PV: torch.Tensor, weighted: Sequence[tuple[Weight, Distribution]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns Σ weight * (-Σ p log q) over some distributions p. All tokens that are not stored form one class.

    Args:
        logits_PV: log q up to a constant, float32 or float64.
        weighted: the distributions p with their weights.

    Returns:
        The losses [P], and the gradient of their sum with respect to the logits [P, V].
    """
    q_PV = logits_PV.softmax(dim=1)
    # The largest logit and its probability give log Z with one pass less than `logsumexp` and without another exp.
    log_z_P = logits_PV.amax(dim=1) - q_PV.amax(dim=1).log()
    terms = [(weight, *_term(logits_PV, log_z_P, p)) for weight, p in weighted]
    loss_P = sum((weight * term_P for weight, term_P, _, _ in terms), start=torch.zeros_like(log_z_P))
    mass_P = sum((weight * pull_P for weight, _, pull_P, _ in terms), start=torch.zeros_like(log_z_P))
    # The softmax is not needed afterwards, so its memory becomes the gradient: a copy would be V numbers a position.
    gradient_PV = q_PV.mul_(mass_P[:, None])
    for weight, _, _, pull in terms:
        if isinstance(pull, Dense):
            gradient_PV.sub_(weight * pull.probability_PV)
        else:
            # The tensor holds q times a mass already, so the entries are added to it instead of replacing it.
            gradient_PV.index_put_((pull.position_E, pull.token_E), -weight * pull.probability_E, accumulate=True)
    return loss_P, gradient_PV


def _term(
    logits_PV: torch.Tensor, log_z_P: torch.Tensor, p: Distribution
) -> tuple[torch.Tensor, torch.Tensor, Distribution]:
    """Returns -Σ p log q [P], and its gradient: q times a mass [P], less terms of single tokens."""
    if isinstance(p, Dense):
        return log_z_P - (p.probability_PV * logits_PV).sum(dim=1), torch.ones_like(log_z_P), p
    log_q_E = logits_PV[p.position_E, p.token_E] - log_z_P[p.position_E]
    kept_P = torch.zeros_like(log_z_P).index_add(0, p.position_E, p.probability_E * log_q_E)
    loss_P, pull_E = -kept_P, p.probability_E
    # Only top-k distributions leave a rest. The terms below cost several passes, so others skip them.
    if p.rest_P.any():
        q_E = log_q_E.exp()
        mass_P = torch.zeros_like(log_z_P).index_add(0, p.position_E, q_E)
        # All tokens that are not stored form one class: its loss is -rest * log(1 - stored mass of the student).
        free_P = 1 - mass_P.clamp(max=MOST_KEPT)
        loss_P = loss_P - p.rest_P * free_P.log()
        # Where the clamp is active its derivative is 0, so the gradient must be 0 there, too.
        odds_P = (p.rest_P / free_P).where(mass_P < MOST_KEPT, 0)
        pull_E = pull_E - odds_P[p.position_E] * q_E
    return loss_P, torch.zeros_like(log_z_P).index_add(0, p.position_E, pull_E), replace(p, probability_E=pull_E)
