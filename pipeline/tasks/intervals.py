"""How far a score could be off by the chance of which rows are in the dev set: percentile bootstrap over rows.

Shapes: N rows, C logits or classes, R resamples.
"""

import numpy as np
import numpy.typing as npt
from scipy import stats

from pipeline.arrays import Floats, Ints
from pipeline.tasks.target import NO_LABEL, Target, predicted_scores
from pipeline.tasks.task import Metric

RESAMPLES = 1000
LEVEL = 0.95
SEED = 0
CHUNK_VALUES = 2**24  # bounds the memory for resampled scores

Doubles = npt.NDArray[np.float64]


def bootstrap_intervals(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats
) -> dict[str, list[float]]:
    """The 95 % interval of each metric, from 1000 resamples of the rows with a fixed seed.

    Args:
        metrics: names of the task's metrics.
        target: what the logits mean.
        logits_NC: float32, before softmax.
        label_N: int64 gold classes, ``NO_LABEL`` where unknown.
        score_N: float32 raw gold scores, NaN where unknown.

    Returns:
        ``[low, high]`` per metric; empty if no row has gold.
    """
    random = np.random.default_rng(SEED)
    known = np.isfinite(score_N) if target.kind != "classes" else label_N != NO_LABEL
    if not known.any():
        return {}
    if target.kind == "classes":
        counts_RCC = _resampled_counts(random, label_N[known], logits_NC[known].argmax(axis=1), target.num_logits)
        values = {name: _of_counts(name, counts_RCC) for name in metrics}
    else:
        pairs_2N = np.stack([predicted_scores(target, logits_NC)[known], score_N[known]]).astype(np.float64)
        values = _resampled_correlations(random, pairs_2N, metrics)
    tails = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    return {name: np.quantile(value_R, tails).tolist() for name, value_R in values.items()}


def _resampled_counts(random: np.random.Generator, gold_N: Ints, predicted_N: Ints, num_classes: int) -> Doubles:
    """Confusion matrices [R, gold, predicted] of resampled rows: drawing rows is drawing cells of the matrix."""
    counts = np.bincount(gold_N * num_classes + predicted_N, minlength=num_classes**2)
    drawn = random.multinomial(len(gold_N), counts / len(gold_N), size=RESAMPLES)
    return drawn.reshape(RESAMPLES, num_classes, num_classes).astype(np.float64)


def _of_counts(name: Metric, counts_RCC: Doubles) -> Doubles:
    """A metric of confusion matrices; 0 where it is undefined, as scikit-learn has it."""
    total_R, right_R = counts_RCC.sum(axis=(1, 2)), counts_RCC.trace(axis1=1, axis2=2)
    gold_RC, predicted_RC = counts_RCC.sum(axis=2), counts_RCC.sum(axis=1)
    if name == "accuracy":
        return np.asarray(right_R / total_R)
    if name == "f1":
        return _ratio(2 * counts_RCC[:, 1, 1], gold_RC[:, 1] + predicted_RC[:, 1])
    covariance_R = right_R * total_R - (gold_RC * predicted_RC).sum(axis=1)
    spread_R = (total_R**2 - (gold_RC**2).sum(axis=1)) * (total_R**2 - (predicted_RC**2).sum(axis=1))
    return _ratio(covariance_R, np.sqrt(spread_R))


def _resampled_correlations(
    random: np.random.Generator, pairs_2N: Doubles, metrics: tuple[Metric, ...]
) -> dict[Metric, Doubles]:
    num_rows = pairs_2N.shape[1]
    values: dict[Metric, list[Doubles]] = {name: [] for name in metrics}
    left = RESAMPLES
    while left:
        count = min(left, max(1, CHUNK_VALUES // num_rows))
        left -= count
        pairs_2RN = pairs_2N[:, random.integers(num_rows, size=(count, num_rows))]
        for name in metrics:
            values[name].append(_pearson(stats.rankdata(pairs_2RN, axis=-1) if name == "spearmanr" else pairs_2RN))
    return {name: np.concatenate(parts) for name, parts in values.items()}


def _pearson(pairs_2RN: Doubles) -> Doubles:
    a_RN, b_RN = pairs_2RN - pairs_2RN.mean(axis=-1, keepdims=True)
    return _ratio((a_RN * b_RN).sum(axis=1), np.sqrt((a_RN**2).sum(axis=1) * (b_RN**2).sum(axis=1)))


def _ratio(top_R: Doubles, bottom_R: Doubles) -> Doubles:
    return np.divide(top_R, bottom_R, out=np.zeros_like(top_R), where=bottom_R > 0)
