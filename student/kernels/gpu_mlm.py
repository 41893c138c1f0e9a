"""The loss of masked positions and its gradient on the GPU, both while a row of logits is at hand.

A row is read twice and written once, in pieces of the vocabulary; softmax and gradient of a row never lie anywhere but
in the row itself (Hsu et al. 2024, Liger Kernel). Nothing waits for the GPU.

Shapes: P positions, V vocabulary, E kept entries of the teacher's distributions.
"""

import torch
import triton
from triton import language as tl

from pipeline.logit_set.codecs import Kept

WORDS = tl.constexpr(4096)  # of a row at once
ENTRIES = tl.constexpr(64)  # of a position at once
MOST_KEPT = tl.constexpr(1 - 1e-6)  # of the student's mass; its rest is divided by


def to_gradient(
    logits_PV: torch.Tensor,
    target_P: torch.Tensor,
    teacher: Kept,
    alpha: float,
    temperature: float,
    scale: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Alpha * CE(gold) + (1 - alpha) * T² * CE(teacher_T, student_T), and its gradient in place of the logits.

    With q the student's probabilities at T, S their sum over the tokens that were kept, and r what the teacher gives to
    all others together, CE(teacher, student) is -Σ p log q - r log(1 - S). Its derivative by z = logit / T is, with
    o = r / (1 - S), q (Σ p - o S) for any token, and o q - p more for one that was kept.

    Args:
        logits_PV: float32 or bfloat16, the student's; is overwritten with the gradient of the sum of the losses.
        target_P: int64, what stood at the position.
        teacher: p and r at ``temperature``: entries in the order of their positions, each token once at a position.
        alpha: weight of the gold.
        temperature: T.
        scale: by which losses and gradient are multiplied; a scalar.

    Returns:
        loss_P, float32, nats.
    """
    assert logits_PV.is_contiguous()
    position_P = torch.arange(len(logits_PV) + 1, device=logits_PV.device)
    starts_S = torch.searchsorted(teacher.position_E, position_P)
    if not isinstance(scale, torch.Tensor):
        scale = logits_PV.new_full((), scale, dtype=torch.float32)
    loss_P = torch.empty_like(target_P, dtype=torch.float32)
    _to_gradient[(len(logits_PV),)](
        logits_PV,
        target_P,
        starts_S,
        teacher.token_E,
        teacher.probability_E,
        torch.empty_like(teacher.probability_E),
        teacher.rest_P,
        loss_P,
        scale,
        alpha,
        temperature,
        logits_PV.shape[1],
        TEMPERED=temperature != 1,
        num_warps=8,
        enable_fp_fusion=True,
    )
    return loss_P


@triton.jit
def _to_gradient(
    logits,
    targets,
    starts,
    tokens,
    probabilities,
    kept_logits,
    rests,
    losses,
    scale,
    alpha,
    temperature,
    V,
    TEMPERED: tl.constexpr,
):
    position = tl.program_id(0)
    logits += position.to(tl.int64) * V
    start, stop = tl.load(starts + position), tl.load(starts + position + 1)
    target, rest = tl.load(targets + position), tl.load(rests + position)
    hard = alpha * tl.load(scale)
    soft = (1 - alpha) * temperature * tl.load(scale)

    log_z, log_z_soft = _log_z(logits, V, temperature, TEMPERED)
    given = 0.0  # Σ p
    said = 0.0  # Σ p log q
    kept = 0.0  # Σ q over the entries
    for group in range(start, stop, ENTRIES):
        entry = group + tl.arange(0, ENTRIES)
        x = tl.load(logits + tl.load(tokens + entry, mask=entry < stop, other=0)).to(tl.float32)
        tl.store(kept_logits + entry, x, mask=entry < stop)
        p = tl.load(probabilities + entry, mask=entry < stop, other=0.0)
        log_q = x / temperature - log_z_soft
        given += tl.sum(p)
        said += tl.sum(p * log_q)
        kept += tl.sum(tl.where(entry < stop, tl.exp(log_q), 0.0))
    free = 1 - tl.minimum(kept, MOST_KEPT)
    odds = tl.where(kept < MOST_KEPT, rest / free, 0.0)
    gold = log_z - tl.load(logits + target).to(tl.float32)
    tl.store(losses + position, hard * gold - soft * temperature * (said + rest * tl.log(free)))

    tl.debug_barrier()  # other threads have read the logits
    for first in range(0, V, WORDS):
        word = first + tl.arange(0, WORDS)
        x = tl.load(logits + word, mask=word < V, other=0.0).to(tl.float32)
        q = tl.exp(x - log_z)
        q_soft = tl.exp(x / temperature - log_z_soft) if TEMPERED else q
        gradient = hard * (q - (word == target)) + soft * (given - odds * kept) * q_soft
        tl.store(logits + word, gradient, mask=word < V)
    tl.debug_barrier()  # and have written the gradient
    for group in range(start, stop, ENTRIES):
        entry = group + tl.arange(0, ENTRIES)
        word = tl.load(tokens + entry, mask=entry < stop, other=0)
        x = tl.load(kept_logits + entry, mask=entry < stop, other=0.0)
        p = tl.load(probabilities + entry, mask=entry < stop, other=0.0)
        q_soft = tl.exp(x / temperature - log_z_soft)
        gradient = hard * (tl.exp(x - log_z) - (word == target)) + soft * ((given - odds * kept + odds) * q_soft - p)
        tl.store(logits + word, gradient, mask=entry < stop)


@triton.jit
def _log_z(logits, V, temperature, TEMPERED: tl.constexpr):
    """The logarithm of the sum of exp(logit), and of exp(logit / temperature)."""
    largest = -float("inf")
    total = 0.0
    total_soft = 0.0
    for first in range(0, V, WORDS):
        word = first + tl.arange(0, WORDS)
        x = tl.load(logits + word, mask=word < V, other=-float("inf")).to(tl.float32)
        before = largest
        largest = tl.maximum(largest, tl.max(x))
        total = total * tl.exp(before - largest) + tl.sum(tl.exp(x - largest))
        if TEMPERED:
            fewer = tl.exp((before - largest) / temperature)
            total_soft = total_soft * fewer + tl.sum(tl.exp((x - largest) / temperature))
    log_z = largest + tl.log(total)
    return log_z, largest / temperature + tl.log(total_soft) if TEMPERED else log_z
