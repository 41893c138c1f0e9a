from dataclasses import replace

import numpy as np
import torch

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import NO_LABEL, Target
from student.data import load_examples
from student.losses.layers import NEGATIVES, kinds, negatives


def test_negatives_are_all_known_rows_of_other_kinds() -> None:
    torch.manual_seed(0)
    kind_N, is_known_N = np.array([0, 0, 1, 2, 1, 0]), np.array([True, True, True, True, False, True])
    drawn = negatives(kind_N, is_known_N, np.array([5, 2, 0]))
    assert drawn.shape == (3, NEGATIVES)
    assert [set(row) for row in drawn.tolist()] == [{2, 3}, {0, 1, 3, 5}, {2, 3}]
    torch.manual_seed(0)
    assert np.array_equal(negatives(kind_N, is_known_N, np.array([5, 2, 0])), drawn)
    assert not np.array_equal(negatives(kind_N, is_known_N, np.array([5, 2, 0])), drawn)


def test_rows_of_a_kind_have_the_same_labels(opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "train")
    teacher_NC = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0]], dtype=np.float32)
    classes = Target(kind="classes", names=("a", "b"))
    one = replace(examples, label_N=np.array([0, NO_LABEL, NO_LABEL]), teacher_NC=teacher_NC)
    assert kinds(classes, one).tolist() == [0, 0, 1]
    labels = Target(kind="labels", names=("a", "b"))
    both = np.array([[1, 1], [NO_LABEL, NO_LABEL], [0, 1]])
    first, second, third = kinds(labels, replace(examples, label_N=both, teacher_NC=teacher_NC)).tolist()
    assert first == second != third
