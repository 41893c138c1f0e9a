"""Training rows that choose the best epoch in place of dev rows. Shapes: N rows."""

from dataclasses import replace

import numpy as np

from pipeline.arrays import Bools
from pipeline.tasks.target import Target, has_gold
from pipeline.training.batches import held_out_rows
from student.data import Examples


def hold_out(rows: Examples, target: Target, share: float) -> tuple[Examples, Examples]:
    """Parts training rows into those that are trained on and those that are held out.

    Held out are whole source rows, of those that have gold and are no variants. Variants of a row that is held out
    are in neither part, rows without gold are all trained on.

    Args:
        rows: training rows.
        target: of their task.
        share: of the source rows with gold, which is held out.

    Raises:
        DataError: if no row would be held out, or none left.
    """
    source_N, variant_N = rows.key_N2.T
    is_scored_N = has_gold(target, rows.label_N, rows.score_N) & (variant_N == 0)
    scored = source_N[is_scored_N]  # ascending, as rows are in the order of their keys
    is_held_N = np.isin(source_N, scored[held_out_rows(len(scored), share)])
    return _taken(rows, ~is_held_N), _taken(rows, is_held_N & is_scored_N)


def _taken(rows: Examples, is_taken_N: Bools) -> Examples:
    places = np.flatnonzero(is_taken_N)
    return replace(
        rows,
        ids1=rows.ids1.take(places),
        ids2=None if rows.ids2 is None else rows.ids2.take(places),
        label_N=rows.label_N[places],
        score_N=rows.score_N[places],
        teacher_NC=rows.teacher_NC[places],
        weight_N=rows.weight_N[places],
        key_N2=rows.key_N2[places],
    )
