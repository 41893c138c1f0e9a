"""Always the same answer. Shapes: N rows, C logits."""

from collections.abc import Sequence

import numpy as np

from distill.apps.results.rows import Rows
from distill.apps.results.system import System
from pipeline.arrays import Floats
from pipeline.tasks.target import Target


def fit(train: Rows, target: Target) -> System:
    """A system that gives the commonest label of the training rows, those that most have, or their mean score."""
    answer_C = np.zeros(target.num_logits, dtype=np.float32)
    if target.kind == "classes":
        answer_C[np.bincount(train.label_N).argmax()] = 1
    elif target.kind == "labels":
        answer_C[:] = np.where(train.label_N.mean(axis=0) > 0.5, 1, -1)
    else:
        answer_C[0] = train.score_N.mean()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        return np.tile(answer_C, (len(texts1), 1))

    return System(target, logits, 0, 0)
