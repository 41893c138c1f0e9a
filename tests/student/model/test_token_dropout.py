import pytest
import torch
from torch import nn

from student.model.student import Student
from tests.helpers.toy_students import padded, student

ALL = 1 - 1e-9  # a share of 1 is refused; of this nothing is left
IDS = padded([[1, 2, 3], [4], [5, 6, 7, 8]])


def representation_only(**changes: object) -> Student:
    """A student whose logits are its sentence representations."""
    model = student(hidden_dropout=0.0, **changes)
    model.head = nn.Identity()
    return model


def test_dropped_tokens_are_neutral() -> None:
    model = representation_only(token_dropout=ALL).train()
    neutral = model.eval()(padded([[]]))
    assert torch.equal(model.train()(IDS), neutral.expand(3, -1))
    assert neutral.tolist() == [[0, 0, 0, 0, *(1, 0, 0, 0, 1, 0, 0, 0, 1) * 2]]


@pytest.mark.parametrize("head", ["mlp", "bilstm"])
def test_nothing_is_dropped_outside_training(head: str) -> None:
    plain, dropping = (student(token_dropout=share, head=head) for share in (0.0, ALL))
    assert torch.equal(dropping(IDS), plain(IDS))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75])
def test_whole_tokens_are_dropped_at_the_given_rate(share: float) -> None:
    model = representation_only(matrix_size=0, vector_size=2, token_dropout=share).train()
    (vectors,) = model.encoder.tables()
    with torch.no_grad():
        vectors.weight[1:] = torch.tensor([[2.0**k, -(2.0**k)] for k in range(9)])
    sums = model(torch.arange(1, 10).expand(2000, -1))
    assert torch.equal(sums[:, 0], -sums[:, 1])  # of a token either all or nothing
    kept = (sums[:, :1].long() >> torch.arange(9)) & 1
    assert torch.equal((kept * 2 ** torch.arange(9)).sum(dim=1).float(), sums[:, 0])
    torch.testing.assert_close(kept.double().mean(dim=0), torch.full((9,), 1 - share).double(), rtol=0, atol=0.06)
    if share:
        assert len(kept.unique(dim=0)) > 100  # drawn for each sentence anew


def test_both_sentences_of_a_pair_lose_tokens() -> None:
    model = representation_only(is_pair=True, token_dropout=0.5, matrix_size=0, vector_size=1).train()
    first, second, _ = model(padded([[1]] * 400), padded([[2]] * 400)).unbind(dim=1)
    for part in (first, second):
        assert 0.3 < (part == 0).double().mean() < 0.7
    assert not torch.equal(first == 0, second == 0)


def test_the_product_of_the_tokens_left_is_exact() -> None:
    model = representation_only(matrix_size=2, vector_size=0, bidirectional=False, token_dropout=0.5).train()
    (matrices,) = model.encoder.tables()
    a, b = matrices.weight[1].view(2, 2), matrices.weight[2].view(2, 2)
    possible = {tuple(m.flatten().tolist()) for m in (torch.eye(2), a, b, a @ b)}
    assert {tuple(row) for row in model(padded([[1, 2]] * 99)).tolist()} == possible
