"""Training rows that choose the best epoch, so that dev rows choose nothing."""

import numpy as np

from pipeline.arrays import Ints
from pipeline.errors import DataError

HELD_OUT = "held-out"  # the name of their split, which no manifest can call one of its own


def held_out_rows(num_rows: int, share: float) -> Ints:
    """Which of so many rows are held out, int64, ascending; for the same number and share always the same.

    A teacher and its student, fine-tuned and trained on all rows of a task with the same share, hold out the same.

    Raises:
        DataError: if no row would be held out, or none left.
    """
    count = round(share * num_rows)
    if not 0 < count < num_rows:
        raise DataError(f"--held-out {share:g}: that is {count} of {num_rows} training rows; choose another")
    return np.sort(np.random.default_rng(0).permutation(num_rows)[:count])
