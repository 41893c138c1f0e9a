"""What a pretrained student owes to the context: its loss beside those of guesses that have none.

Shapes: P positions, F features, V vocabulary.
"""

import numpy as np
import torch
from torch.nn import functional

from pipeline.arrays import Ints
from pipeline.sets.token_reader import TokenSet
from student.pretrain.held_out import head_logits, held_out
from student.pretrain.model import MlmStudent


def control(student: MlmStudent, token_set: TokenSet, split: str, log_frequency_V: torch.Tensor) -> dict[str, float]:
    """Losses of masked words that are guessed without their context, at the positions of `evaluate_mlm`.

    Args:
        student: a pretrained one.
        token_set: the set.
        split: one of its splits.
        log_frequency_V: of `log_frequencies`.

    Returns:
        In nats ``unigram_loss`` of the frequencies of training words; ``mean_features_loss`` of the student if each
        position has the mean of all positions' features; ``other_features_loss`` if it has those of a random other
        one; ``context_gain``, how much less the student's own is than the first. Empty if the split has no row.
    """
    student.eval()
    mean_F = _mean_features(student, token_set, split)
    if mean_F is None:
        return {}
    mean_1V, unigram_1V = head_logits(student, mean_F[None]), log_frequency_V.to(student.device)[None]
    random, positions, sums = np.random.default_rng(0), 0, np.zeros(4)
    for part in held_out(student, token_set, split):
        target_P = part.target_P
        other_PF = part.features_PF[torch.from_numpy(others(len(target_P), random))]
        logits = (
            unigram_1V.expand(len(target_P), -1),
            mean_1V.expand(len(target_P), -1),
            head_logits(student, other_PF),
            head_logits(student, part.features_PF),
        )
        sums += [float(functional.cross_entropy(logits_PV, target_P, reduction="sum")) for logits_PV in logits]
        positions += len(target_P)
    unigram, mean, other, own = (sums / positions).tolist()
    return {
        "unigram_loss": unigram,
        "mean_features_loss": mean,
        "other_features_loss": other,
        "context_gain": unigram - own,
    }


def others(number: int, random: np.random.Generator) -> Ints:
    """For each of so many positions a random other one, each once: [P]. A single position has itself alone."""
    order = random.permutation(number)
    other_P = np.empty_like(order)
    other_P[order] = np.roll(order, 1)
    return other_P


def _mean_features(student: MlmStudent, token_set: TokenSet, split: str) -> torch.Tensor | None:
    """The mean of the features of a split's positions [F], float32; None if it has no row."""
    sum_F, positions = torch.zeros(student.head.in_features, dtype=torch.float64, device=student.device), 0
    for part in held_out(student, token_set, split):
        sum_F += part.features_PF.double().sum(dim=0)
        positions += len(part.features_PF)
    return (sum_F / positions).float() if positions else None
