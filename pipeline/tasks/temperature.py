"""Calibrated probabilities of labels, intervals of scores, and thresholds of labels that hold each by itself.

A student takes its probabilities from its teacher: too sure where the teacher is, too flat where soft targets made
them so. One number mends that, the temperature by which logits are divided (Guo et al. 2017, section 4.2). It does not
change which class is most likely.

Shapes: N rows, C logits or labels.
"""

import math
from collections.abc import Mapping
from typing import Annotated, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.tasks.target import NO_LABEL, Target, has_gold, predicted_scores

FEWEST_OF_LABEL = 10  # rows with a label, and rows without it, for a temperature of its own
HOTTEST = 20.0
# Thresholds are stored as probabilities, and those of larger logits would round to 0 or 1.
MOST_LOGIT = 30.0
COVERAGE = 0.9  # share of gold scores that an interval is to contain
AnyFloats = TypeVar("AnyFloats", Floats, Floats64)
Temperature = Annotated[float, Field(ge=1 / HOTTEST, le=HOTTEST)]


class Calibration(BaseModel):
    """What makes probabilities of a student's logits, or intervals of its scores.

    Attributes:
        temperature: what logits are divided by before softmax or sigmoid: one number, or of labels that hold each by
            itself one for each. Empty for scores.
        half_width: half of the width of the interval around a score that contains gold with probability `COVERAGE`.
            None for labels.
        score_range: the lowest and the highest score of the task, which no interval passes, or None if it is unknown.
        num_rows: rows that it was fitted on. The student was not trained on them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: tuple[Temperature, ...] = Field((), max_length=2**22)
    half_width: float | None = Field(None, ge=0, allow_inf_nan=False)
    score_range: tuple[FiniteFloat, FiniteFloat] | None = None
    num_rows: int = Field(ge=1)

    def problems(self, target: Target) -> list[str]:
        """Why it cannot be that of a student with such a target; it may come from a stranger's file."""
        wanted = 0 if not target.has_labels else target.num_logits if target.has_label_lists else 1
        if len(self.temperature) != wanted:
            return [f"calibration has {len(self.temperature)} temperatures, where {wanted} are needed"]
        return []


def calibrated(logits_NC: Floats, calibration: Calibration | None) -> Floats:
    """The logits whose softmax or sigmoid are calibrated probabilities, float32 [N, C]."""
    if calibration is None or not calibration.temperature:
        return logits_NC
    return np.asarray(logits_NC / np.array(calibration.temperature, dtype=np.float32))


def intervals(score_N: AnyFloats, calibration: Calibration | None) -> tuple[AnyFloats, AnyFloats] | None:
    """The two numbers between which gold lies with probability `COVERAGE`, or None if they are not known."""
    if calibration is None or calibration.half_width is None:
        return None
    ends = calibration.score_range or (-math.inf, math.inf)
    low_N, high_N = score_N - calibration.half_width, score_N + calibration.half_width
    return np.clip(low_N, *ends), np.clip(high_N, *ends)


def fit_calibration(target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats) -> Calibration | None:
    """Fits a student's calibration to gold.

    Args:
        target: what the logits mean.
        logits_NC: float32 logits of rows that the student was not trained on.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where unknown. See `gold_arrays`.
        score_N: float32 gold scores, NaN where unknown.

    Returns:
        The calibration, or None without gold.
    """
    known_N = has_gold(target, label_N, score_N)
    num_rows = int(known_N.sum())
    if not num_rows:
        return None
    if not target.has_labels:
        error_N = np.abs(predicted_scores(target, logits_NC[known_N]).astype(np.float64) - score_N[known_N])
        # The further row is as likely to fall into each of the N + 1 gaps between sorted errors, hence N + 1.
        place = math.ceil((len(error_N) + 1) * COVERAGE)
        return Calibration(half_width=float(np.sort(error_N)[min(place, len(error_N)) - 1]), num_rows=num_rows)
    fit = _temperatures_of_labels if target.has_label_lists else _temperature_of_classes
    return Calibration(temperature=fit(logits_NC[known_N].astype(np.float64), label_N[known_N]), num_rows=num_rows)


def _temperature_of_classes(logits_NC: Floats64, label_N: Ints) -> tuple[float, ...]:
    num_rows, num_classes = logits_NC.shape
    # A student that is always right would get a temperature of 0, so gold keeps a doubt of one row in N + 2, as in
    # Platt (1999, section 2.2).
    doubt = 1 / (num_rows + 2)
    gold_NC = np.full((num_rows, num_classes), doubt / num_classes)
    gold_NC[np.arange(num_rows), label_N] += 1 - doubt
    return (_temperature(logits_NC, gold_NC),)


def _temperatures_of_labels(logits_NC: Floats64, label_NC: Ints) -> tuple[float, ...]:
    common = _temperature_of_label(logits_NC.ravel(), label_NC.ravel())
    num_gold_C = label_NC.sum(axis=0)
    has_own_C = np.minimum(num_gold_C, len(label_NC) - num_gold_C) >= FEWEST_OF_LABEL
    columns = zip(logits_NC.T, label_NC.T, has_own_C, strict=True)
    return tuple(_temperature_of_label(logit_N, gold_N) if has_own else common for logit_N, gold_N, has_own in columns)


def _temperature_of_label(logit_N: Floats64, gold_N: Ints) -> float:
    num_gold = int(gold_N.sum())
    # The same doubt, by the rows with the label and those without it.
    holds_N = np.where(gold_N == 1, (num_gold + 1) / (num_gold + 2), 1 / (len(gold_N) - num_gold + 2))
    # A label is a class of two: the softmax of its logit and 0 is its sigmoid.
    return _temperature(np.stack([logit_N, np.zeros_like(logit_N)], axis=1), np.stack([holds_N, 1 - holds_N], axis=1))


def _temperature(logits_NC: Floats64, gold_NC: Floats64) -> float:
    """The likeliest temperature given gold, as probabilities, and that most temperatures are between 1/e and e."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        scaled_NC = logits_NC / math.exp(log_temperature)
        entropy = float((np.logaddexp.reduce(scaled_NC, axis=1) - (gold_NC * scaled_NC).sum(axis=1)).sum())
        # A normal prior of log T with mean 0 and variance 1. It decides where rows are few: twenty of them alone can
        # make probabilities worse than they were. A thousand rows outweigh it.
        return entropy + log_temperature**2 / 2

    # The entropy is convex in 1 / T, so that it has one minimum over log T. The prior moves it towards 0.
    found = minimize_scalar(loss, bounds=(-math.log(HOTTEST), math.log(HOTTEST)))
    # Some digits fewer than the solver is exact to, so that machines agree on the number that is stored.
    return float(np.clip(round(math.exp(found.x), 4), 1 / HOTTEST, HOTTEST))


def best_thresholds(target: Target, logits_NC: Floats, label_NC: Ints) -> dict[str, float]:
    """Returns the probability of each label above which its F1 is best on some rows, or 0.5 if no row has the label.

    Args:
        target: names the labels.
        logits_NC: float32, a student's logits.
        label_NC: their gold, rows of ``NO_LABEL`` where there is none.
    """
    known_N = label_NC[:, 0] != NO_LABEL
    pairs = zip(target.names, logits_NC[known_N].T, label_NC[known_N].T, strict=True)
    return {name: 1 / (1 + float(np.exp(-_best_cut(logit_N, gold_N)))) for name, logit_N, gold_N in pairs}


def _best_cut(logit_N: Floats, gold_N: Ints) -> float:
    """Returns the logit half-way between two rows above which F1 is best. Among equally good ones, the nearest to 0."""
    # Without positive rows F1 is 0 at every threshold, so the neutral one stays.
    if not gold_N.any():
        return 0.0
    order_N = np.argsort(-logit_N, kind="stable")
    sorted_N = logit_N[order_N].astype(np.float64)
    right_N, said_N = np.cumsum(gold_N[order_N]), np.arange(1, len(gold_N) + 1)
    f1_N = 2 * right_N / (said_N + gold_N.sum())
    # A cut half-way between two rows is the most robust to small changes of their logits.
    cut_N = (sorted_N + np.append(sorted_N[1:], sorted_N[-1] - 1)) / 2
    # A threshold cannot separate equal logits, so cuts between them are excluded.
    f1_N[:-1][np.diff(sorted_N) == 0] = -1
    best = np.flatnonzero(f1_N == f1_N.max())
    return float(np.clip(np.nan_to_num(cut_N[best[np.abs(cut_N[best]).argmin()]]), -MOST_LOGIT, MOST_LOGIT))


def as_logits(thresholds: Mapping[str, float], target: Target) -> Floats:
    """Thresholds by label as logits [C], or 0 for a label without one."""
    p_C = np.array([thresholds.get(name, 0.5) for name in target.names])
    # `log1p` keeps thresholds near 0 exact, where 1 - p would round.
    return np.asarray(np.log(p_C) - np.log1p(-p_C), dtype=np.float32)
