"""Systems compared row by row: differences from the first student, and kinds of rows on which they follow the teacher.

Shapes: N rows, K seeds, C logits.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from distill.apps.systems import SCORE, Rows
from pipeline.arrays import Bools, Floats, Ints
from pipeline.tasks.metrics import fidelity, score_logits
from pipeline.tasks.target import Target, predicted_scores
from pipeline.tasks.task import Metric

# Standard errors from so many resamples have a standard error of 5 %.
RESAMPLES = 200
SEED = 0
NEGATION = re.compile(r"\b(not|no|never|nor|none|nothing|nobody|neither|without|cannot)\b|n['\u2019]t\b", re.IGNORECASE)
WORD = re.compile(r"\w+")

# A number for some of the rows, from a system's logits [N, C] and the numbers of these rows.
Measure = Callable[[Floats, Ints], float]


@dataclass(frozen=True)
class Difference:
    """The difference of two systems on the same rows.

    Attributes:
        mean: of the seeds' scores.
        error: its standard error over rows, by a paired bootstrap. It does not contain the variance between seeds.
    """

    mean: float
    error: float


def metric_of(metric: Metric, target: Target, rows: Rows) -> Measure:
    """The score of a task's metric."""

    def measure(logits_NC: Floats, among: Ints) -> float:
        own = _own_target(target, logits_NC)
        return score_logits((metric,), own, logits_NC[among], rows.label_N[among], rows.score_N[among])[metric]

    return measure


def fidelity_to(teacher: Target, rows: Rows) -> Measure:
    """The share of rows with the teacher's label, or the Pearson correlation with its scores."""

    def measure(logits_NC: Floats, among: Ints) -> float:
        own = _own_target(teacher, logits_NC)
        return alike(own, logits_NC[among], teacher, rows.teacher_NC[among])

    return measure


def _own_target(target: Target, logits_NC: Floats) -> Target:
    """What logits mean: as the teacher's, or scores themselves where the teacher has bins."""
    return target if logits_NC.shape[1] == target.num_logits else SCORE


def alike(target: Target, logits_NC: Floats, teacher: Target, teacher_NC: Floats) -> float:
    """The share of rows with the teacher's label, or the Pearson correlation with its scores."""
    if target.has_labels:
        return fidelity(target, logits_NC, teacher_NC)["agreement"]
    outputs = (predicted_scores(t, part)[:, None] for t, part in ((target, logits_NC), (teacher, teacher_NC)))
    return fidelity(SCORE, *outputs)["pearson"]


def difference(measure: Measure, one_KNC: Floats, other_KNC: Floats) -> Difference:
    """Returns how much larger a measure is for one system than for another. The measures of seeds are averaged."""

    def mean(seeds_KNC: Floats, among: Ints) -> float:
        return float(np.mean([measure(logits_NC, among) for logits_NC in seeds_KNC]))

    def apart(among: Ints) -> float:
        return mean(one_KNC, among) - mean(other_KNC, among)

    all_N = np.arange(one_KNC.shape[1])
    random = np.random.default_rng(SEED)
    # Both systems are measured on the same resampled rows, so rows that are hard for both do not add to the error.
    values = [apart(random.choice(all_N, size=len(all_N))) for _ in range(RESAMPLES)]
    return Difference(apart(all_N), float(np.std(values)))


def kinds_of_rows(rows: Rows, train: Rows) -> dict[str, Bools]:
    """Returns which rows are of a kind, [N] each: with an English negation, short, long, and with unknown words.

    Short and long ones are about a third each. Unknown words are those that no training row has.
    """
    texts = rows.texts1 if rows.texts2 is None else list(map(" ".join, zip(rows.texts1, rows.texts2, strict=True)))
    words = [WORD.findall(text.lower()) for text in texts]
    known = {word for text in train.texts for word in WORD.findall(text.lower())}
    length_N = np.array([len(text) for text in words])
    low, high = np.quantile(length_N, (1 / 3, 2 / 3))
    return {
        "with a negation": np.array([bool(NEGATION.search(text)) for text in texts]),
        f"up to {int(low)} words": length_N <= int(low),
        f"more than {int(high)} words": length_N > int(high),
        "with an unknown word": np.array([not known.issuperset(text) for text in words]),
    }
