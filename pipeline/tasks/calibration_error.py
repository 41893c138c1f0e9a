"""How good probabilities of labels are, and how often gold lies within the interval of a score.

Shapes: N rows, C labels, M measures, R resamples.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.arrays import Bools, Floats, Floats64, Ints
from pipeline.tasks.intervals import RESAMPLES, SEED, score_interval
from pipeline.tasks.target import Target, has_gold, predicted_scores, probabilities
from pipeline.tasks.temperature import Calibration, calibrated

BINS = 10
Scores = dict[str, tuple[float, list[float] | None]]


def calibration_scores(
    target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats, calibration: Calibration | None
) -> dict[str, dict[str, Any]]:
    """How good a student's probabilities are before and after its calibration.

    Args:
        target: what the logits mean.
        logits_NC: float32 logits before softmax.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where unknown. See `gold_arrays`.
        score_N: float32 gold scores, NaN where unknown.
        calibration: the student's, or None.

    Returns:
        By measure ``before``, and of a calibrated student ``after``, each with its 95 % interval if it has one
        (``before_interval``, ``after_interval``). See `probability_scores` and `coverage`.
    """
    before = probability_scores(target, logits_NC, label_N)
    scaled_NC = calibrated(logits_NC, calibration)
    after = {} if scaled_NC is logits_NC else probability_scores(target, scaled_NC, label_N)
    after |= coverage(target, logits_NC, score_N, calibration)
    found: dict[str, dict[str, Any]] = {}
    for when, scores in (("before", before), ("after", after)):
        for name, (value, interval) in scores.items():
            found.setdefault(name, {}).update({when: value} | ({f"{when}_interval": interval} if interval else {}))
    return found


def probability_scores(target: Target, logits_NC: Floats, label_N: Ints) -> Scores:
    """How good the probabilities of labels are, over the rows that have gold.

    Args:
        target: what the logits mean.
        logits_NC: float32 logits, `calibrated` or not.
        label_N: gold, see `calibration_scores`.

    Returns:
        ``calibration_error`` (expected calibration error: mean distance of confidence and accuracy over ten bins, Guo
        et al. 2017), ``brier`` (Brier score: squared distance of probabilities and gold, summed over classes) and
        ``log_loss`` (nats), each with its 95 % interval or None (see `score_interval`). Labels that hold each by itself
        count one by one. Empty for scores, and without gold.
    """
    if not target.has_labels:
        return {}
    known_N = has_gold(target, label_N, np.empty(0, dtype=np.float32))
    if not known_N.any():
        return {}
    p_NC, label_N = probabilities(target, logits_NC[known_N]).astype(np.float64), label_N[known_N]
    confidence_N, is_right_N = confidences(target, p_NC, label_N)
    if target.has_label_lists:
        gold_p_N = np.where(is_right_N, confidence_N, 1 - confidence_N)
        distance_N = (confidence_N - is_right_N) ** 2
    else:
        rows = np.arange(len(label_N))
        gold_p_N = p_NC[rows, label_N]
        distance_N = np.square(p_NC).sum(axis=1) - 2 * gold_p_N + 1
    loss_N = -np.log(np.maximum(gold_p_N, np.finfo(np.float32).tiny))
    # Whole rows are resampled, of which the labels depend on one another.
    shape = len(label_N), -1
    confidence_NL, is_right_NL = confidence_N.reshape(shape), is_right_N.reshape(shape)
    distance_NL, loss_NL = distance_N.reshape(shape), loss_N.reshape(shape)
    return _with_intervals(
        len(label_N),
        {
            "calibration_error": lambda rows: calibration_error(confidence_NL[rows].ravel(), is_right_NL[rows].ravel()),
            "brier": lambda rows: distance_NL[rows].mean(),
            "log_loss": lambda rows: loss_NL[rows].mean(),
        },
    )


def confidences(target: Target, p_NC: Floats64, label_N: Ints) -> tuple[Floats64, Bools]:
    """Returns the confidence of each prediction, or of each label of a multi-label task, and whether it is right.

    Args:
        target: what the probabilities mean.
        p_NC: probabilities of rows with gold.
        label_N: their gold, see `calibration_scores`.
    """
    if target.has_label_lists:
        return p_NC.ravel(), label_N.ravel() == 1
    return p_NC.max(axis=1), p_NC.argmax(axis=1) == label_N


def calibration_error(confidence_N: Floats | Floats64, is_right_N: Bools) -> float:
    """Expected calibration error (Guo et al. 2017): mean distance of confidence and accuracy over ten bins."""
    bin_N = _bins(confidence_N)
    # A bin's share times the distance of its means is the distance of its sums, divided by all rows.
    return float(np.abs(np.bincount(bin_N, is_right_N - confidence_N)).sum() / len(bin_N))


def calibration_bins(confidence_N: Floats | Floats64, is_right_N: Bools) -> list[dict[str, Any]]:
    """Returns accuracy and mean confidence of each bin of the calibration error, with its number of rows."""
    bin_N = _bins(confidence_N)
    counts_B = np.bincount(bin_N, minlength=BINS)
    means = [np.bincount(bin_N, part_N, BINS) / np.maximum(counts_B, 1) for part_N in (confidence_N, is_right_N)]
    return [
        {"confidence_from": k / BINS, "confidence_to": (k + 1) / BINS, "n": int(n)}
        | {name: float(mean_B[k]) for name, mean_B in zip(("confidence", "accuracy"), means, strict=True)}
        for k, n in enumerate(counts_B)
        if n
    ]


def _bins(confidence_N: Floats | Floats64) -> Ints:
    return np.minimum((BINS * confidence_N).astype(np.int64), BINS - 1)


def coverage(target: Target, logits_NC: Floats, score_N: Floats, calibration: Calibration | None) -> Scores:
    """The share of gold scores within the intervals, with its 95 % interval; empty without either."""
    known_N = np.isfinite(score_N)
    if calibration is None or calibration.half_width is None or not known_N.any():
        return {}
    error_N = np.abs(predicted_scores(target, logits_NC) - score_N)[known_N]
    is_inside_N = error_N <= np.float32(calibration.half_width)
    return _with_intervals(len(is_inside_N), {"coverage": lambda rows: is_inside_N[rows].mean()})


def _with_intervals(num_rows: int, measures: Mapping[str, Callable[[Ints | slice], Any]]) -> Scores:
    """Each measure of all rows, and its 95 % interval over resampled rows, the same ones for every measure."""
    random = np.random.default_rng(SEED)
    values_MR = np.empty((len(measures), RESAMPLES))
    for number in range(RESAMPLES):  # one resample at a time: all of them at once would fill the memory
        rows = random.integers(num_rows, size=num_rows)
        values_MR[:, number] = [measure(rows) for measure in measures.values()]
    found: Scores = {}
    for (name, measure), value_R in zip(measures.items(), values_MR, strict=True):
        value = float(measure(slice(None)))
        if name == "calibration_error":
            # Noise adds to a distance and takes nothing from it, so resampled calibration errors are larger in the
            # mean. The interval is moved back by that, and no error is below 0 or above 1.
            value_R = np.clip(value_R - value_R.mean() + value, 0, 1)
        found[name] = value, score_interval(name, value_R, num_rows)
    return found
