import numpy as np
import pytest

from student.data import make_batches
from student.settings import HeadKind

LENGTHS = np.array([3, 40] * 64)


@pytest.mark.parametrize(("head", "mixes"), [("mlp", False), ("linear", False), ("bilstm", False), ("cnn", True)])
def test_only_a_cnn_sees_batches_of_mixed_lengths(head: HeadKind, mixes: bool) -> None:
    made = make_batches(head, LENGTHS, batch_size=32, seed=42)
    first, second = ([made.at(4 * epoch + step) for step in range(4)] for epoch in (0, 1))
    for batches in (first, second):
        assert sorted(row for rows in batches for row in rows) == list(range(len(LENGTHS)))
        assert [len(set(LENGTHS[rows])) > 1 for rows in batches] == [mixes] * 4
    assert first != second
