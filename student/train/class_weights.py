"""Weights of training rows, by their class too. Shapes: N rows, C classes."""

import numpy as np

from pipeline.arrays import Floats
from student.config import TrainConfig
from student.data import Examples, classes_of


def row_weights(flags: TrainConfig, examples: Examples) -> Floats:
    """What multiplies the losses of each row, of its logits and of layers, float32 [N]."""
    if flags.class_weights is None:
        return examples.weight_N
    return examples.weight_N * balanced_weights(examples)


def balanced_weights(examples: Examples) -> Floats:
    """Weights with which every class that occurs counts the same, float32 [N], beside the rows' own, 1 in their mean.

    A row without gold, such as a variant, is of the class that its teacher says.
    """
    _, place_N = np.unique(classes_of(examples.label_N, examples.teacher_NC), return_inverse=True)
    total_C = np.bincount(place_N, weights=examples.weight_N)
    weight_C = np.divide(total_C.sum() / (total_C > 0).sum(), total_C, out=np.zeros_like(total_C), where=total_C > 0)
    return np.asarray(weight_C[place_N], dtype=np.float32)
