"""From what a teacher says of labels, logits or probabilities, to logits. Shapes: A answers, C labels."""

from collections.abc import Sequence

import numpy as np

from pipeline.arrays import Floats, Floats64
from teacher.answers.config import AnswersKind

FLOOR = 1e-6  # no probability is taken for less: its logarithm has to be a number
SLACK = 0.01  # that a sum of probabilities may be off by: rounded ones are common


def wrong_numbers(kind: AnswersKind, numbers_AC: Floats64, names: Sequence[str], may_spread: bool) -> dict[int, str]:
    """What is wrong with answers that are numbers, by their place.

    Args:
        kind: what they are; no score.
        numbers_AC: as they were given, NaN where a label is not named.
        names: the labels.
        may_spread: whether probabilities may leave labels out.
    """
    wrong = {a: _gap(kind, names, numbers_AC[a]) for a in np.flatnonzero(np.isnan(numbers_AC).any(axis=1)).tolist()}
    if kind == "logits":
        return wrong
    probability_AC = np.exp(numbers_AC.clip(max=1)) if kind == "logprobs" else numbers_AC
    sum_A, is_whole_A = np.nansum(probability_AC, axis=1), ~np.isnan(numbers_AC).any(axis=1)
    is_outside_A = ((probability_AC < 0) | (probability_AC > 1 + SLACK)).any(axis=1)
    is_short_A = is_whole_A & (sum_A < 1 - SLACK) & (kind == "probabilities")
    odd = {
        a: f"{numbers_AC[a].tolist()} are no {kind}: as probabilities they add up to {sum_A[a]:.4g}"
        for a in np.flatnonzero(is_outside_A | is_short_A | (sum_A > 1 + SLACK)).tolist()
    }
    return odd if may_spread else wrong | odd


def wrong_apart(kind: AnswersKind, numbers_AC: Floats64, names: Sequence[str]) -> dict[int, str]:
    """The same of answers to each label by itself, whose probabilities need not add up to anything."""
    wrong = {}
    for a in np.flatnonzero(np.isnan(numbers_AC).any(axis=1)).tolist():
        missing = [name for name, number in zip(names, numbers_AC[a], strict=True) if np.isnan(number)]
        wrong[a] = f"nothing of {', '.join(missing)}; say of each label whether it holds"
    low, high = {"logits": (-np.inf, np.inf), "probabilities": (0, 1), "logprobs": (-np.inf, 0)}[kind]
    for a in np.flatnonzero(((numbers_AC < low) | (numbers_AC > high)).any(axis=1)).tolist():
        wrong[a] = f"{numbers_AC[a].tolist()} are no {kind}: each lies between {low:g} and {high:g}"
    return wrong


def _gap(kind: AnswersKind, names: Sequence[str], numbers_C: Floats64) -> str:
    missing = ", ".join(name for name, number in zip(names, numbers_C, strict=True) if np.isnan(number))
    if kind == "logits":
        return f"nothing of {missing}, and the logits of others do not tell"
    return f"nothing of {missing}; --rest spread shares out what is left of 1 among them"


def to_logits(kind: AnswersKind, numbers_AC: Floats64) -> Floats:
    """Logits as they are, or those whose softmax are the probabilities; labels not named share what is left of 1.

    Args:
        kind: what the numbers are.
        numbers_AC: as `wrong_numbers` lets them through.

    Returns:
        logits_AC: float32; of probabilities their logarithms, none below that of `FLOOR`.
    """
    if kind in ("logits", "score"):
        return numbers_AC.astype(np.float32)
    is_missing_AC = np.isnan(numbers_AC)
    if kind == "logprobs":
        is_whole_A1 = ~is_missing_AC.any(axis=1, keepdims=True)
        likeliest_A1 = np.nanmax(numbers_AC, axis=1, keepdims=True)
        # where all labels are unlikely, as other words were likelier, what counts is how they compare
        numbers_AC = np.exp(numbers_AC - np.where(is_whole_A1, likeliest_A1, 0))
    left_A1 = (1 - np.nansum(numbers_AC, axis=1, keepdims=True)).clip(min=0)
    share_A1 = left_A1 / is_missing_AC.sum(axis=1, keepdims=True).clip(min=1)
    probability_AC = np.where(is_missing_AC, share_A1, numbers_AC)
    probability_AC /= probability_AC.sum(axis=1, keepdims=True)
    return np.asarray(np.log(probability_AC.clip(min=FLOOR)), dtype=np.float32)


def to_logits_apart(kind: AnswersKind, numbers_AC: Floats64) -> Floats:
    """The same of labels apart: logits whose sigmoid are the probabilities, none nearer to 0 or 1 than `FLOOR`."""
    if kind == "logits":
        return numbers_AC.astype(np.float32)
    probability_AC = (np.exp(numbers_AC) if kind == "logprobs" else numbers_AC).clip(FLOOR, 1 - FLOOR)
    return np.asarray(np.log(probability_AC) - np.log1p(-probability_AC), dtype=np.float32)
