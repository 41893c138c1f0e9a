"""The first ten losses of each kind of student on fixed data; run this file to record a change that is wanted."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.tasks.target import Target
from student.losses.logit_losses import distillation_loss
from student.model.architecture import StudentConfig
from student.model.student import Student
from tests.helpers.toy_students import encoder_of

GOLDEN = Path(__file__).parent / "golden" / "losses.json"
SIZES = {"hybrid": (4, 8), "cmow": (5, 0), "cbow": (0, 16)}
KINDS = (*SIZES, "linear", "cnn", "bilstm")  # the first with an MLP, the others heads on a hybrid
VOCABULARY, ROWS, LENGTH, CLASSES, STEPS = 40, 24, 7, 3, 10


def ten_losses(kind: str) -> list[float]:
    random = np.random.default_rng(7)
    ids = [torch.from_numpy(random.integers(0, VOCABULARY, (ROWS, LENGTH))) for _ in range(2)]
    teacher_BC = torch.from_numpy(random.normal(0, 2, (ROWS, CLASSES)).astype(np.float32))
    gold_B = torch.from_numpy(random.integers(-1, CLASSES, ROWS))
    matrix_size, vector_size = SIZES.get(kind, (4, 16))
    torch.manual_seed(7)
    student = Student(
        StudentConfig(
            task="golden",
            target=Target(kind="classes", names=tuple(map(str, range(CLASSES)))),
            metrics=("accuracy",),
            is_pair=True,
            vocabulary_size=VOCABULARY,
            pad_id=0,
            tokenizer_sha256="",
            max_seq_length=2 * LENGTH,
            encoder=encoder_of(matrix_size=matrix_size, vector_size=vector_size),
            head="mlp" if kind in SIZES else kind,
            hidden_size=16,
            hidden_dropout=0.0,
        )
    )
    for layer in student.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0  # what it draws differs from machine to machine
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        loss = distillation_loss(student(*ids), teacher_BC, gold_B, alpha=0.5, temperature=2.0)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ten_losses_are_as_before(kind: str) -> None:
    golden = json.loads(GOLDEN.read_text())[kind]
    assert len(golden) == STEPS
    assert golden[-1] < golden[0]
    assert ten_losses(kind) == pytest.approx(golden, abs=1e-4)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({kind: [round(x, 6) for x in ten_losses(kind)] for kind in KINDS}, indent=2) + "\n")
