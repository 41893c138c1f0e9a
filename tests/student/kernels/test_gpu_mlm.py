"""The Triton kernel of the masked positions' loss against the formula, written down in float64 torch."""

import pytest
import torch

pytest.importorskip("triton")

from pipeline.logit_set.codecs import Kept
from student.kernels.gpu_mlm import to_gradient

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
POSITIONS, VOCABULARY = 5, 5000  # more words than are read at once


def teacher_of(counts: tuple[int, ...], rest: float) -> Kept:
    """Distributions over so many different random tokens; together they and the rest have mass 1."""
    tokens = [torch.randperm(VOCABULARY)[:count] for count in counts]
    shares = [(1 - rest) * torch.rand(count).softmax(0) for count in counts]
    kept = (torch.repeat_interleave(torch.tensor(counts)), torch.cat(tokens), torch.cat(shares))
    position_E, token_E, probability_E = (part.to(DEVICE) for part in kept)
    return Kept(position_E, token_E, probability_E, torch.full((len(counts),), rest, device=DEVICE))


def expected_loss(
    logits_PV: torch.Tensor, target_P: torch.Tensor, teacher: Kept, alpha: float, temperature: float
) -> torch.Tensor:
    """The loss of each position, in a full matrix of probabilities."""
    log_q_PV = (logits_PV / temperature).log_softmax(1)
    p_PV = torch.zeros_like(logits_PV)
    p_PV[teacher.position_E, teacher.token_E] = teacher.probability_E.to(p_PV.dtype)
    is_kept_PV = torch.zeros_like(p_PV, dtype=torch.bool)
    is_kept_PV[teacher.position_E, teacher.token_E] = True
    others_P = log_q_PV.exp().masked_fill(is_kept_PV, 0).sum(1)
    soft_P = -(p_PV * log_q_PV).sum(1) - teacher.rest_P.to(p_PV.dtype) * others_P.log()
    hard_P = torch.nn.functional.cross_entropy(logits_PV, target_P, reduction="none")
    return alpha * hard_P + (1 - alpha) * temperature**2 * soft_P


@pytest.mark.parametrize(
    ("alpha", "temperature", "rest"), [(0.0, 1.0, 0.25), (0.3, 2.0, 0.1), (0.5, 1.0, 0.0), (1.0, 1.0, 0.5)]
)
@pytest.mark.parametrize("gold_is_kept", [True, False])
def test_loss_and_gradient_are_those_of_the_formula(
    alpha: float, temperature: float, rest: float, gold_is_kept: bool
) -> None:
    torch.manual_seed(0)
    teacher = teacher_of((3, 64, 65, 1, 200), rest)
    logits_PV = (3 * torch.randn(POSITIONS, VOCABULARY, device=DEVICE)).sort(dim=1).values  # the largest are read last
    firsts_P = teacher.token_E[torch.searchsorted(teacher.position_E, torch.arange(POSITIONS, device=DEVICE))]
    target_P = firsts_P if gold_is_kept else (firsts_P + 1) % VOCABULARY
    exact_PV = logits_PV.double().requires_grad_()
    expected_P = expected_loss(exact_PV, target_P, teacher, alpha, temperature) * 0.7
    expected_P.sum().backward()  # type: ignore[no-untyped-call]
    loss_P = to_gradient(logits_PV, target_P, teacher, alpha, temperature, scale=0.7)
    torch.testing.assert_close(loss_P.double(), expected_P, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits_PV.double(), exact_PV.grad, rtol=1e-4, atol=1e-7)


def test_bfloat16_logits_get_a_bfloat16_gradient() -> None:
    torch.manual_seed(0)
    teacher = teacher_of((4, 4), 0.1)
    logits_PV = torch.randn(2, VOCABULARY, device=DEVICE).bfloat16()
    target_P = torch.tensor([1, 2], device=DEVICE)
    exact_PV = logits_PV.double().requires_grad_()
    expected_loss(exact_PV, target_P, teacher, 0.5, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    to_gradient(logits_PV, target_P, teacher, 0.5, 1.0, torch.ones((), device=DEVICE))
    torch.testing.assert_close(
        logits_PV.double(), exact_PV.grad, rtol=2**-7, atol=1e-7
    )  # the interpreter cuts off, the GPU rounds


def test_a_student_that_has_put_everything_on_the_kept_tokens_is_not_pushed_by_the_rest() -> None:
    logits_PV = torch.zeros(1, VOCABULARY, device=DEVICE)
    logits_PV[0, 7] = 24.6  # leaves 1e-7 to all others
    entry = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    teacher = Kept(entry, entry + 7, torch.tensor([0.5], device=DEVICE), torch.tensor([0.5], device=DEVICE))
    loss_P = to_gradient(logits_PV, entry, teacher, 0.0, 1.0)
    torch.testing.assert_close(loss_P, -0.5 * torch.log(torch.tensor([1e-6], device=DEVICE)), rtol=0.1, atol=0)
    assert logits_PV.abs().max() < 1e-6


def test_known_answer() -> None:
    logits_PV = torch.zeros(1, 4, device=DEVICE)  # q = 1/4 each
    entry = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    teacher = Kept(entry, entry + 2, torch.tensor([0.5], device=DEVICE), torch.tensor([0.5], device=DEVICE))
    loss_P = to_gradient(logits_PV, entry + 1, teacher, 0.0, 1.0)
    # -1/2 log 1/4 - 1/2 log 3/4; the others share what they lack of 1/2, 1/4 - 1/6 each
    assert loss_P.tolist() == pytest.approx([0.5 * 1.3862944 + 0.5 * 0.2876821])
    assert logits_PV[0].tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 4, 1 / 12])
