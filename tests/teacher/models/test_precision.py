from pathlib import Path

import pytest
import torch

from pipeline.tasks.task import Task
from teacher.models.classifier import Teacher, load_teacher
from teacher.models.loaded import inference_mode, keep_head_in_float32

IDS = torch.tensor([[1, 5, 6, 7, 2], [1, 9, 8, 5, 2]])


@pytest.fixture
def teacher(opinion: Task, teachers: Path) -> Teacher:
    return load_teacher(opinion, str(teachers / "opinion"), None, (), 32)


def logits(teacher: Teacher, precision: str) -> torch.Tensor:
    with inference_mode(torch.device("cpu"), precision):
        said: torch.Tensor = teacher.model(IDS).logits
    return said


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_of_matrix_products_without_gradients(precision: str, dtype: torch.dtype) -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with inference_mode(torch.device("cpu"), precision):
        product = weight @ weight
    assert product.dtype == dtype
    assert not product.requires_grad


def test_the_head_is_as_exact_as_what_the_encoder_gives(teacher: Teacher) -> None:
    rounded = logits(teacher, "bf16")
    assert rounded.dtype == torch.bfloat16
    keep_head_in_float32(teacher.model)
    with inference_mode(torch.device("cpu"), "bf16"):
        hidden_BLH = teacher.model.bert.encoder(teacher.model.bert.embeddings(IDS)).last_hidden_state
    pooler, classifier = teacher.model.bert.pooler.dense, teacher.model.classifier
    with torch.no_grad():
        first_BH = torch.tanh(hidden_BLH[:, 0].double() @ pooler.weight.double().T + pooler.bias)
        expected = first_BH @ classifier.weight.double().T + classifier.bias
    torch.testing.assert_close(logits(teacher, "bf16").double(), expected, rtol=0, atol=1e-6)
    assert (rounded.double() - expected).abs().max() > 1e-5


def test_float32_is_as_it_was(teacher: Teacher) -> None:
    before = logits(teacher, "fp32")
    keep_head_in_float32(teacher.model)
    assert torch.equal(logits(teacher, "fp32"), before)
