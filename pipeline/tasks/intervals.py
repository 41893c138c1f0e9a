"""The 95 % interval of a score: how much the score depends on which rows are in the dev set.

An interval is a percentile bootstrap over rows. Resamples of rows that are all alike have equal scores, and such a
bootstrap has no width, although few rows prove little. Shares then have the exact interval of Clopper and Pearson, and
other scores have no interval.

Shapes: N rows, R resamples.
"""

import numpy as np

from pipeline.arrays import Floats64

RESAMPLES = 1000
LEVEL = 0.95
# A fixed seed, so that evaluating a run twice prints the same interval.
SEED = 0
SHARES = {"accuracy", "coverage"}  # scores that are the share of rows of which something holds
ROUNDING = 1e-9  # of scores between -1 and 1 that differ by their last digits


def score_interval(name: str, value_R: Floats64, num_rows: int) -> list[float] | None:
    """Returns the 95 % interval of a score, ``[low, high]``. None if its resamples are equal and it is no share.

    Args:
        name: the name of the score.
        value_R: its values on resampled rows.
        num_rows: the number of rows of a resample.
    """
    low, high = percentile_interval(value_R)
    if high - low > ROUNDING:
        return [low, high]
    return exact_interval(float(value_R[0]) * num_rows, num_rows) if name in SHARES else None


def mean_interval(value_N: Floats64) -> list[float] | None:
    """Returns the 95 % interval of the mean of rows, or None if they are all equal. See `score_interval`."""
    random, num_rows = np.random.default_rng(SEED), len(value_N)
    return score_interval("mean", value_N[random.integers(num_rows, size=(RESAMPLES, num_rows))].mean(axis=1), num_rows)


def percentile_interval(value_R: Floats64) -> list[float]:
    """Returns the bounds of the middle 95 % of some values, ``[low, high]``."""
    ends: list[float] = np.quantile(value_R, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    return ends


def exact_interval(count: float, num_rows: int) -> list[float]:
    """Returns Clopper and Pearson's 95 % interval of a share of which ``count`` of ``num_rows`` were seen."""
    confidence = (1 + LEVEL) / 2
    return [1 - upper_bound(num_rows - count, num_rows, confidence), upper_bound(count, num_rows, confidence)]


def upper_bound(count: float, num_rows: int, confidence: float) -> float:
    """Clopper and Pearson's upper bound of a share of which ``count`` of ``num_rows`` were seen."""
    # The bound is a quantile of the beta distribution. It is exact and needs no large samples.
    from scipy.special import betaincinv

    return 1.0 if count >= num_rows else float(betaincinv(count + 1, num_rows - count, confidence))
