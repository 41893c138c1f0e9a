"""Weights of training rows by their class. Shapes: N rows, C classes."""

import numpy as np

from pipeline.arrays import Floats
from pipeline.tasks.target import NO_LABEL
from student.data import Examples


def balanced_weights(examples: Examples) -> Floats:
    """Weights with which every class that occurs counts the same, float32 [N], 1 in the mean.

    A row without gold, such as a variant, is of the class that its teacher says.
    """
    class_N = np.where(examples.label_N == NO_LABEL, examples.teacher_NC.argmax(axis=1), examples.label_N)
    _, place_N, count_C = np.unique(class_N, return_inverse=True, return_counts=True)
    weight_C = len(class_N) / (len(count_C) * count_C)
    return np.asarray(weight_C[place_N], dtype=np.float32)
