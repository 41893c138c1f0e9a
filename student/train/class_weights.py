"""Weights of training rows by their class. Shapes: N rows, C classes."""

import numpy as np

from pipeline.arrays import Floats
from pipeline.tasks.target import NO_LABEL
from student.data import Examples


def balanced_weights(examples: Examples) -> Floats:
    """Weights with which every class that occurs counts the same, float32 [N], beside the rows' own, 1 in their mean.

    A row without gold, such as a variant, is of the class that its teacher says.
    """
    class_N = np.where(examples.label_N == NO_LABEL, examples.teacher_NC.argmax(axis=1), examples.label_N)
    _, place_N = np.unique(class_N, return_inverse=True)
    total_C = np.bincount(place_N, weights=examples.weight_N)
    weight_C = np.divide(total_C.sum() / (total_C > 0).sum(), total_C, out=np.zeros_like(total_C), where=total_C > 0)
    return np.asarray(weight_C[place_N], dtype=np.float32)
