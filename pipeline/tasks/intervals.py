"""How far a score could be off by the chance of which rows are in the dev set: percentile bootstrap over rows.

Shapes: N rows, C logits or classes, R resamples.
"""

import numpy as np

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.tasks.metrics import OF_COUNTS, OF_SCORES, confusion
from pipeline.tasks.tallies import OF_LABELS, tallies
from pipeline.tasks.target import Target, has_gold, predicted_scores
from pipeline.tasks.task import Metric

RESAMPLES = 1000
LEVEL = 0.95
SEED = 0
CHUNK_VALUES = 2**24  # bounds the memory for resampled scores


def bootstrap_intervals(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats
) -> dict[str, list[float]]:
    """The 95 % interval of each metric, from 1000 resamples of the rows with a fixed seed.

    Args:
        metrics: names of the task's metrics.
        target: what the logits mean.
        logits_NC: float32, before softmax.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where unknown.
        score_N: float32 raw gold scores, NaN where unknown.

    Returns:
        ``[low, high]`` per metric; empty if no row has gold.
    """
    random = np.random.default_rng(SEED)
    known = has_gold(target, label_N, score_N)
    if not known.any():
        return {}
    if target.kind == "classes":
        counts_RCC = _resampled_counts(random, label_N[known], logits_NC[known].argmax(axis=1), target.num_logits)
        values = {name: OF_COUNTS[name](counts_RCC) for name in metrics}
    elif target.kind == "labels":
        counts_3RC = resampled_tallies(random, tallies(logits_NC[known] > 0, label_N[known]))
        values = {name: OF_LABELS[name](counts_3RC) for name in metrics}
    else:
        pairs_2N = np.stack([predicted_scores(target, logits_NC)[known], score_N[known]]).astype(np.float64)
        values = _resampled_correlations(random, pairs_2N, metrics)
    return {name: percentile_interval(value_R) for name, value_R in values.items()}


def mean_interval(value_N: Floats64) -> list[float]:
    """The 95 % interval of the mean of values of rows, ``[low, high]``, from 1000 resamples with a fixed seed."""
    random = np.random.default_rng(SEED)
    return percentile_interval(value_N[random.integers(len(value_N), size=(RESAMPLES, len(value_N)))].mean(axis=1))


def percentile_interval(value_R: Floats64) -> list[float]:
    """Between which two numbers the middle 95 % of some values are, ``[low, high]``."""
    ends: list[float] = np.quantile(value_R, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return ends


def _resampled_counts(random: np.random.Generator, gold_N: Ints, predicted_N: Ints, num_classes: int) -> Floats64:
    """Confusion matrices [R, gold, predicted] of resampled rows: drawing rows is drawing cells of the matrix."""
    counts_CC = confusion(gold_N, predicted_N, num_classes)
    drawn = random.multinomial(len(gold_N), counts_CC.ravel() / len(gold_N), size=RESAMPLES)
    return drawn.reshape(RESAMPLES, num_classes, num_classes).astype(np.float64)


def resampled_tallies(random: np.random.Generator, tallies_3NC: Floats64) -> Floats64:
    """Sums [3, R, C] of resampled rows."""
    num_rows = tallies_3NC.shape[1]
    sums = []
    for _ in range(RESAMPLES):
        times_N = np.bincount(random.integers(num_rows, size=num_rows), minlength=num_rows)
        sums.append(times_N @ tallies_3NC)
    return np.stack(sums, axis=1)


def _resampled_correlations(
    random: np.random.Generator, pairs_2N: Floats64, metrics: tuple[Metric, ...]
) -> dict[Metric, Floats64]:
    """Each metric of resampled rows [R], as many resamples at a time as memory allows."""
    num_rows = pairs_2N.shape[1]
    values: dict[Metric, list[Floats64]] = {name: [] for name in metrics}
    left = RESAMPLES
    while left:
        count = min(left, max(1, CHUNK_VALUES // num_rows))
        left -= count
        pairs_2RN = pairs_2N[:, random.integers(num_rows, size=(count, num_rows))]
        for name in metrics:
            values[name].append(OF_SCORES[name](pairs_2RN))
    return {name: np.concatenate(parts) for name, parts in values.items()}
