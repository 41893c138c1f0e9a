"""The loss of masked positions against its plain formula in float64, and what the head's pass allocates."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.sets.codec_text import CodecName
from pipeline.sets.codecs import CODECS, Decoder, Dense, Distribution, Predictions, Sparse
from student.losses import masked_words as head_module
from student.losses.masked_words import HeadPass, cross_entropy, position_loss

P, F, V = 11, 6, 19
SETTINGS: dict[CodecName, dict[str, Any]] = {
    "dense": {},
    "hidden": {"hidden_size": 5},
    "topk": {"top_k": 4},
    "sampled": {"num_samples": 7},
}


def through(name: CodecName, temperature: float) -> Distribution:
    """What a codec has kept of random distributions at P positions."""
    generator = torch.Generator().manual_seed(3)
    decoder = Decoder(torch.randn(V, 5, generator=generator), torch.randn(V, generator=generator))
    hidden_PH = torch.randn(P, 5, generator=generator)
    said = Predictions(decoder(hidden_PH), hidden_PH, torch.rand(P, generator=generator).double())
    own = SETTINGS[name] | ({"temperature": temperature} if name == "sampled" else {})
    codec = CODECS[name](vocabulary_size=V, **own)
    columns, _ = codec.encode(said)
    return codec.decode(columns, temperature, decoder)


def plain_loss(
    logits_PV: torch.Tensor, target_P: torch.Tensor, teacher: Distribution, alpha: float, temperature: float
) -> torch.Tensor:
    """The sum over positions, by the formula: tokens that were not kept are one class together."""
    hard = functional.cross_entropy(logits_PV, target_P, reduction="sum")
    q_PV = (logits_PV / temperature).softmax(dim=1)
    if isinstance(teacher, Dense):
        soft = -(teacher.probability_PV.double() * q_PV.log()).sum()
    else:
        kept_PV = torch.zeros_like(q_PV, dtype=torch.bool)
        kept_PV[teacher.position_E, teacher.token_E] = True
        soft = -(teacher.probability_E.double() * q_PV[teacher.position_E, teacher.token_E].log()).sum()
        soft = soft - (teacher.rest_P.double() * (q_PV * ~kept_PV).sum(dim=1).log()).sum()
    return alpha * hard + (1 - alpha) * temperature**2 * soft


def random_head(seed: int = 0) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """A head, features and targets."""
    torch.manual_seed(seed)
    return nn.Linear(F, V), torch.randn(P, F, requires_grad=True), torch.randint(V, (P,))


def test_the_loss_of_two_positions_by_hand() -> None:
    logits_PV = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0]])
    q = logits_PV.softmax(dim=1).tolist()
    teacher = Sparse(
        torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2]), torch.tensor([0.5, 0.25, 1.0]), torch.tensor([0.25, 0.0])
    )
    first = -(0.5 * np.log(q[0][0]) + 0.25 * np.log(q[0][1]) + 0.25 * np.log(q[0][2] + q[0][3]))
    loss_P, gradient_PV = cross_entropy(logits_PV, [(1, teacher)])
    assert loss_P.tolist() == pytest.approx([first, -np.log(q[1][2])])
    # the rest is one class: its probability is shared out as the student does
    shared_out = [q[0][0] - 0.5, q[0][1] - 0.25, *(q[0][k] - 0.25 / 2 for k in (2, 3))]
    assert gradient_PV[0].tolist() == pytest.approx(shared_out, abs=1e-6)
    mixed_P, _ = position_loss(logits_PV, torch.tensor([3, 2]), teacher, 0.25, 1.0)
    assert float(mixed_P[0]) == pytest.approx(0.25 * -np.log(q[0][3]) + 0.75 * first)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_teachers_term_has_the_gradient_of_the_divergence(temperature: float) -> None:
    torch.manual_seed(0)
    logits_PV, teacher_PV = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    stored, target_P = Dense((teacher_PV / temperature).softmax(dim=1)), torch.zeros(5, dtype=torch.int64)
    _, mine_PV = position_loss(logits_PV, target_P, stored, 0.0, temperature)
    leaf = logits_PV.clone().requires_grad_()
    log_q, log_p = ((x / temperature).log_softmax(dim=1) for x in (leaf, teacher_PV))
    loss = functional.kl_div(log_q, log_p, log_target=True, reduction="sum") * temperature**2
    (theirs_PV,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(mine_PV, theirs_PV)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("codec", "temperature"),
    [("dense", 1), ("dense", 3), ("hidden", 2), ("topk", 1), ("sampled", 1), ("sampled", 2.5)],
)
@pytest.mark.parametrize("chunk", [2, 4, 12])
def test_the_pass_gives_the_loss_and_gradients_of_the_formula(
    codec: CodecName, temperature: float, alpha: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the positions nor the vocabulary can be divided by what is worked on at once."""
    for name, value in {"CHUNK": chunk, "STEP": 2, "ROWS": 3, "WORDS": 5}.items():
        monkeypatch.setattr(head_module, name, value)
    head, features_PF, target_P = random_head()
    teacher = through(codec, temperature)
    exact = [tensor.detach().double().requires_grad_() for tensor in (features_PF, head.weight, head.bias)]
    expected = plain_loss(functional.linear(*exact), target_P, teacher, alpha, temperature) / 7
    head_pass = HeadPass(head, torch.float32)
    for _ in range(2):  # nothing of a step is left in the next
        features_PF.grad = None
        loss = head_pass.loss(
            features_PF, target_P, lambda part: teacher.part(part.start, part.stop), alpha, temperature, 1 / 7
        )
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        gradients = (features_PF.grad, head.weight.grad, head.bias.grad)
        for mine, theirs in zip(gradients, torch.autograd.grad(expected, exact, retain_graph=True), strict=True):
            assert mine is not None
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-6)


def test_loss_is_finite_when_all_mass_is_on_kept_tokens() -> None:
    """It leaves nothing to the rest, which the teacher gives a tenth."""
    teacher = Sparse(torch.tensor([0]), torch.tensor([0]), torch.tensor([0.9]), torch.tensor([0.1]))
    loss_P, gradient_PV = cross_entropy(torch.tensor([[200.0, 0.0, 0.0]]), [(1, teacher)])
    assert float(loss_P) == pytest.approx(0.1 * -np.log(1e-6), rel=0.01)
    assert gradient_PV.tolist()[0] == pytest.approx([0, 0, 0])


def test_bf16_is_within_its_rounding() -> None:
    """Eight bits of a number are kept: 1/512 of it is lost at most each time that it is rounded."""
    torch.manual_seed(0)
    head, target_P = nn.Linear(300, 2000), torch.randint(2000, (150,))
    features_PF = torch.randn(150, 300, requires_grad=True)
    token_PK = (2 * torch.randn(150, 2000)).topk(20, dim=1).indices
    probability_PK = torch.rand(150, 20).softmax(dim=1) * 0.9
    position_PK = torch.arange(150)[:, None].expand(-1, 20)
    kept = Sparse(position_PK.flatten(), token_PK.flatten(), probability_PK.flatten(), 1 - probability_PK.sum(dim=1))
    exact = [tensor.detach().double().requires_grad_() for tensor in (features_PF, head.weight, head.bias)]
    expected = plain_loss(functional.linear(*exact), target_P, kept, 0.5, 1.0)
    loss = HeadPass(head, torch.bfloat16).loss(
        features_PF, target_P, lambda part: kept.part(part.start, part.stop), 0.5, 1.0
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    gradients = (features_PF.grad, head.weight.grad, head.bias.grad)
    for mine, theirs in zip(gradients, torch.autograd.grad(expected, exact), strict=True):
        assert mine is not None
        assert float((mine.double() - theirs).norm() / theirs.norm()) < 2**-6
        assert float(functional.cosine_similarity(mine.double().flatten(), theirs.flatten(), dim=0)) > 1 - 2**-12


class NewMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Most numbers of a tensor that was made, apart from views and what was written to memory that was there."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and _memory(tensor) not in given:
                self.most = max(self.most, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_never_holds_positions_times_vocabulary(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    num_positions, chunk, rows, size = 200, 16, 4, 500
    for name, value in {"CHUNK": chunk, "STEP": 8, "ROWS": rows, "WORDS": 100}.items():
        monkeypatch.setattr(head_module, name, value)
    head, features_PF = nn.Linear(F, size), torch.randn(num_positions, F, requires_grad=True)
    target_P, one_P = torch.randint(size, (num_positions,)), torch.ones(num_positions)
    teacher = Sparse(torch.arange(num_positions), target_P, 0.5 * one_P, 0.5 * one_P)
    with NewMemory() as made:  # type: ignore[no-untyped-call]
        head_pass = HeadPass(head, dtype)
    assert made.most == max(chunk, 32) * size
    with NewMemory() as made:  # type: ignore[no-untyped-call]
        loss = head_pass.loss(features_PF, target_P, lambda part: teacher.part(part.start, part.stop), 0.5, 1.0)
        loss.backward()  # type: ignore[no-untyped-call]
    assert made.most <= max(rows * size, num_positions * F)
