"""Which pairs of neighbouring tokens a student has vectors of: those of most training rows.

Shapes: T tokens, P pairs of all rows, K pairs that are kept.
"""

from collections.abc import Iterable

import numpy as np

from pipeline.arrays import Ints, Ragged
from student.data import Examples
from student.model.architecture import StudentConfig

FEWEST_ROWS = 2  # what one row alone has is learned by heart
BITS = 32  # of an id


def frequent_pairs(examples: Iterable[Examples], most: int) -> Ints:
    """The pairs of neighbouring tokens that most training rows have, of those that several have.

    Args:
        examples: training rows, of several tasks if they share the pairs; those of weight 0 do not count.
        most: how many pairs.

    Returns:
        Ids, int64 [K, 2], rising.
    """
    if not most:
        return np.zeros((0, 2), np.int64)
    pair_K, count_K = np.unique(np.concatenate([_pairs_of_rows(rows) for rows in examples]), return_counts=True)
    kept = np.argsort(-count_K, kind="stable")[:most]
    pair_K = np.sort(pair_K[kept[count_K[kept] >= FEWEST_ROWS]])
    return np.stack([pair_K >> BITS, pair_K & (2**BITS - 1)], axis=1)


def with_bigrams(config: StudentConfig, count: int) -> StudentConfig:
    """A student's configuration with so many pairs, of as many as were asked for."""
    return config.model_copy(update={"num_bigrams": count, "bigram_size": config.bigram_size if count else 0})


def _pairs_of_rows(examples: Examples) -> Ints:
    """Each row's pairs, each once, as one number, int64 [P]."""
    counted = np.flatnonzero(examples.weight_N)
    pairs_P2 = np.concatenate([_pairs(part.take(counted)) for part in examples.sequences])
    return np.unique(pairs_P2, axis=0)[:, 1]


def _pairs(ids: Ragged) -> Ints:
    """The row and the two tokens, as one number, of each pair, int64 [P, 2]."""
    row_T = np.repeat(np.arange(len(ids.lengths)), ids.lengths)
    first_P = np.flatnonzero(row_T[1:] == row_T[:-1])
    return np.stack([row_T[first_P], ids.flat[first_P] << BITS | ids.flat[first_P + 1]], axis=1)
