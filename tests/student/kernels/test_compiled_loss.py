"""The loss in C++ against torch's own operators, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tasks.target import NO_LABEL
from student.kernels import native, native_training
from student.losses.logit_losses import distillation_loss, plain_loss
from student.settings import SoftLoss
from tests.helpers.messages import naming

pytestmark = pytest.mark.skipif(native.library() is None, reason="nothing is built")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    classes=st.integers(2, 21),
    seed=st.integers(0, 999),
    alpha=st.sampled_from([0.0, 0.3, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 4.0]),
    soft_loss=st.sampled_from(["kl", "mse"]),
    weighs=st.booleans(),
    size=st.sampled_from([1.0, 60.0]),
)
def test_it_is_the_loss_of_plain_torch(
    rows: int,
    classes: int,
    seed: int,
    alpha: float,
    temperature: float,
    soft_loss: SoftLoss,
    weighs: bool,
    size: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, teacher = (size * torch.randn(rows, classes, generator=generator) for _ in range(2))
    gold = torch.randint(NO_LABEL, classes, (rows,), generator=generator)
    weight = torch.rand(rows, generator=generator) if weighs else None
    assert native_training.can_do(logits)
    logits.requires_grad_()
    exact = logits.detach().double().requires_grad_()
    settings = (alpha, temperature, soft_loss, weight if weight is None else weight.double())
    expected = plain_loss(exact, teacher.double(), gold, *settings)
    loss = distillation_loss(logits, teacher, gold, alpha, temperature, soft_loss, weight)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
    (3 * loss).backward()  # type: ignore[no-untyped-call]
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-5, atol=1e-7)


def test_transposed_logits_are_read_by_their_rows() -> None:
    logits, teacher = torch.randn(3, 4).T.requires_grad_(), torch.randn(3, 4).T
    gold = torch.tensor([0, 1, 2, NO_LABEL])
    expected = plain_loss(logits, teacher, gold, 0.5, 2.0, "kl", None)
    assert distillation_loss(logits, teacher, gold, 0.5, 2.0).item() == pytest.approx(expected.item(), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    logits = torch.randn(3, 4)
    with pytest.raises(IndexError, match="4 classes"):
        distillation_loss(logits, logits, torch.tensor([0, 4, 1]), 0.5)
    with pytest.raises(ValueError, match=naming("teacher (3, 2)")):
        distillation_loss(logits, logits[:, :2], torch.tensor([0, 1, 1]), 0.5)
