from typing import Any

import numpy as np
import pytest
import torch

from pipeline.arrays import Ragged
from pipeline.tasks.target import Target
from student.answers.torch_predictor import in_batches, numpy_forward
from student.config import TrainSettings
from student.export.export import with_small_tables
from student.kernels import compiled
from student.model.build_config import build_config
from student.model.model import Student
from tests.helpers.messages import naming

needs_compiled = pytest.mark.skipif(compiled.library() is None, reason="there are no compiled kernels")
ROWS = [[3, 4, 5], [], [6], [7, 7, 8, 9, 3, 11]]
OTHERS = [[], [4, 4], [9, 6, 5], [10]]


def student(is_pair: bool = False, **flags: Any) -> Student:
    """A student of 12 tokens with weights that matter, none of them as it was initialised."""
    facts = {
        "task": "toy",
        "target": Target(kind="classes", names=("a", "b", "c")),
        "metrics": ("accuracy",),
        "is_pair": is_pair,
        "vocabulary_size": 12,
        "pad_id": 0,
        "tokenizer_sha256": "0" * 64,
        "max_seq_length": 16,
        "special_ids": ((1,), (2,), (2,)) if is_pair else None,
    }
    torch.manual_seed(1)
    made = Student(build_config(TrainSettings.from_flags(matrix_size=4, vector_size=16, **flags), facts)).eval()
    with torch.no_grad():
        for parameter in [*made.head.parameters(), *(table.weight for table in made.encoder.tables())]:
            parameter += 0.3 * torch.randn(parameter.shape)
    return made


@needs_compiled
@pytest.mark.parametrize(
    ("flags", "is_small"),
    [
        ({"head": "mlp", "hidden_size": 9}, False),
        ({"head": "linear", "pooling": "sum"}, False),
        ({"head": "linear"}, True),
        ({"is_pair": True}, False),
        ({"is_pair": True, "pairing": "compare", "head": "linear"}, True),
        ({"is_pair": True, "pairing": "joint"}, False),
    ],
)
def test_the_logits_are_those_of_torch(flags: dict[str, Any], is_small: bool) -> None:
    asked = with_small_tables(student(**flags), "float16") if is_small else student(**flags)
    ask = numpy_forward(asked.eval())
    assert ask is not None
    for count in (1, 4):
        parts = [Ragged.of(rows[-count:]) for rows in (ROWS, OTHERS)][: asked.config.num_sequences]
        expected_BC = in_batches(asked.logits, parts, 3, torch.device("cpu"))
        actual_BC = ask(parts)
        assert actual_BC.dtype == np.float32
        np.testing.assert_allclose(actual_BC, expected_BC, atol=1e-5)
    assert np.ptp(expected_BC, axis=0).min() > 0.1


@pytest.mark.parametrize("flags", [{"head": "cnn"}, {"head": "bilstm", "pooling": "sum"}, {"window_size": 4}])
def test_windows_and_heads_of_other_layers_take_torch(flags: dict[str, Any]) -> None:
    assert numpy_forward(student(**flags)) is None


def test_tables_of_int8_take_torch() -> None:
    assert numpy_forward(with_small_tables(student(), "int8")) is None


@needs_compiled
def test_a_token_beyond_the_tables_is_refused() -> None:
    ask = numpy_forward(student())
    assert ask is not None
    with pytest.raises(IndexError, match=naming("ids[1] is 12")):
        ask([Ragged.of([[3, 12]])])


def test_another_device_takes_torch() -> None:
    # Tensors of "meta" refuse numpy as those of a GPU do.
    assert numpy_forward(student().to("meta")) is None
