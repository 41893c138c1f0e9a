"""How often each label is said, is gold, and is both: what F1 is made of, micro, macro, and label by label.

Shapes: N rows, C labels, R sets of rows.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.arrays import Bools, Floats64, Ints
from pipeline.tasks.task import Metric


def tallies(said_NC: Bools, gold_NC: Ints) -> Floats64:
    """Three tables of 0 and 1 [3, N, C]: right, said, gold; summed over rows they are what the scores here take."""
    return np.stack([said_NC * gold_NC, said_NC, gold_NC]).astype(np.float64)


def micro_f1(counts_3RC: Floats64) -> Floats64:
    """F1 of all labels taken together [R]; 0 where none is said or gold."""
    right_R, said_R, gold_R = counts_3RC.sum(axis=-1)
    return ratio(2 * right_R, said_R + gold_R)


def macro_f1(counts_3RC: Floats64) -> Floats64:
    """The mean F1 of the labels that are said or gold somewhere [R]; 0 where there is none."""
    _, said_RC, gold_RC = counts_3RC
    return ratio(label_f1(counts_3RC).sum(axis=-1), (said_RC + gold_RC > 0).sum(axis=-1).astype(np.float64))


def label_f1(counts_3RC: Floats64) -> Floats64:
    """F1 of each label [R, C]; 0 where it is neither said nor gold."""
    right_RC, said_RC, gold_RC = counts_3RC
    return ratio(2 * right_RC, said_RC + gold_RC)


def scores_by_name(names: Sequence[str], counts_3C: Floats64) -> dict[str, dict[str, float]]:
    """Of each name that is gold or said: precision, recall, F1 (0 where nothing is said, or gold), and both numbers."""
    right_C, said_C, gold_C = counts_3C
    columns = zip(ratio(right_C, said_C), ratio(right_C, gold_C), label_f1(counts_3C), gold_C, said_C, strict=True)
    return {
        name: {"precision": float(p), "recall": float(r), "f1": float(f), "gold": int(gold), "said": int(said)}
        for name, (p, r, f, gold, said) in zip(names, columns, strict=True)
        if gold or said
    }


OF_LABELS: dict[Metric, Callable[[Floats64], Floats64]] = {"micro_f1": micro_f1, "macro_f1": macro_f1}  # `LabelMetric`


def ratio(top_R: Floats64, bottom_R: Floats64) -> Floats64:
    """The quotients; 0 where the lower side is 0."""
    return np.divide(top_R, bottom_R, out=np.zeros_like(top_R), where=bottom_R > 0)
