import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from student.optimizer import RowAdam, clip_gradients

V, F, CLASSES = 60, 4, 3


class Toy(nn.Module):
    """Sums of two tables' rows, and a linear classifier, in double precision."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.Embedding(V, F, padding_idx=0, sparse=sparse) for _ in range(2))
        self.head = nn.Linear(2 * F, CLASSES)
        self.double()

    def forward(self, ids_BL: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([table(ids_BL).sum(dim=1) for table in self.tables], dim=1))  # type: ignore[no-any-return]


def train(model: Toy, optimizer: torch.optim.Optimizer, steps: range, total: int, scale: float = 1.0) -> None:
    """Steps on rare and common ids; a learning rate that rises from 0 and falls to 0."""
    for step in steps:
        random = np.random.default_rng(step)
        ids_BL = torch.from_numpy(np.minimum(random.zipf(1.3, (4, 5)), V) - 1)
        gold_B = torch.from_numpy(random.integers(CLASSES, size=4))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(step / 5, 1 - step / total)
        if isinstance(optimizer, RowAdam):
            optimizer.catch_up(ids_BL)
        (functional.cross_entropy(model(ids_BL), gold_B) * scale).backward()  # type: ignore[no-untyped-call]
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if isinstance(optimizer, RowAdam):
        optimizer.catch_up()


def row_adam(model: Toy) -> RowAdam:
    return RowAdam(model.tables.parameters(), model.head.parameters(), lr=0.1)


def distance(model: Toy, other: Toy) -> float:
    pairs = zip(model.tables.parameters(), other.tables.parameters(), strict=True)
    return float(torch.stack([(a - b).detach().norm() for a, b in pairs]).norm())


@pytest.mark.parametrize(("scale", "bound"), [(1.0, 1e-4), (1e-4, 1e-2), (1e-7, 1e-2)])
def test_ends_where_dense_adam_ends(scale: float, bound: float) -> None:
    start, dense, rows = Toy(False), Toy(False), Toy(True)
    train(dense, torch.optim.Adam(dense.parameters()), range(200), 200, scale)
    train(rows, row_adam(rows), range(200), 200, scale)
    assert distance(dense, start) > 0.1
    assert distance(rows, dense) < bound * distance(dense, start)


def test_skipping_the_other_rows_would_end_elsewhere() -> None:
    start, dense, skipping = Toy(False), Toy(False), Toy(True)
    train(dense, torch.optim.Adam(dense.parameters()), range(200), 200)
    sparse = torch.optim.SparseAdam(skipping.tables.parameters())
    head = torch.optim.Adam(skipping.head.parameters())
    for step in range(200):
        head.param_groups[0]["lr"] = 0.02 * min(step / 5, 1 - step / 200)
        train(skipping, sparse, range(step, step + 1), 200)
        head.step()
        head.zero_grad()
    assert distance(skipping, dense) > 0.1 * distance(dense, start)


def test_a_row_makes_up_for_what_it_has_missed_by_hand() -> None:
    table = nn.Embedding(3, 1, sparse=True)
    nn.init.zeros_(table.weight)
    optimizer = RowAdam([table.weight], [], lr=1.0)
    for row in (1, 2):
        optimizer.catch_up(torch.tensor([row]))
        table(torch.tensor([row])).sum().backward()
        clip_gradients(table.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
    assert table.weight[1].item() == pytest.approx(-1.0)  # Adam's first step has the length of the learning rate
    m, v = 0.1 * 0.9 / (1 - 0.9**2), 0.001 * 0.999 / (1 - 0.999**2)
    optimizer.catch_up(torch.tensor([1]))
    assert table.weight[1].item() == pytest.approx(-1.0 - m / v**0.5, rel=1e-5)
    assert table.weight[0].item() == 0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), often=st.integers(1, 30))
def test_it_does_not_matter_how_often_rows_are_brought_up_to_date(seed: int, often: int) -> None:
    tables = [nn.Embedding(V, F, sparse=sparse, dtype=torch.float64) for sparse in (True, False)]
    nn.init.ones_(tables[0].weight)
    nn.init.ones_(tables[1].weight)
    rows, dense = RowAdam([tables[0].weight], [], lr=0.01), torch.optim.Adam(tables[1].parameters(), lr=0.01)
    random = np.random.default_rng(seed)
    for step in range(40):
        ids = torch.from_numpy(random.integers(V, size=4))
        factor = torch.from_numpy(random.normal(size=(4, F)))
        if step % often == 0:
            rows.catch_up()
        rows.catch_up(torch.from_numpy(random.integers(V, size=9)))
        rows.catch_up(ids)
        for table in tables:
            (table(ids) * factor).sum().backward()
            clip_gradients(table.parameters(), 1e9)
        for optimizer in (rows, dense):
            optimizer.step()
            optimizer.zero_grad()
    rows.catch_up()
    torch.testing.assert_close(tables[0].weight, tables[1].weight, rtol=0, atol=1e-6)
    for name in ("exp_avg", "exp_avg_sq", "step"):
        expected = dense.state[tables[1].weight][name]
        torch.testing.assert_close(rows.state[tables[0].weight][name], expected, rtol=1e-9, atol=1e-15)


def test_with_dense_gradients_it_is_torchs_adam() -> None:
    one, other = Toy(False), Toy(False)
    train(one, torch.optim.Adam(one.parameters(), fused=True), range(20), 20)
    train(other, row_adam(other), range(20), 20)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_saved_state_goes_on_as_if_never_saved() -> None:
    undisturbed, first = Toy(True), Toy(True)
    optimizer = row_adam(undisturbed)
    train(undisturbed, optimizer, range(10), 30)
    train(undisturbed, optimizer, range(10, 30), 30)
    saved = row_adam(first)
    train(first, saved, range(10), 30)
    second = Toy(True)
    second.load_state_dict(first.state_dict())
    resumed = row_adam(second)
    resumed.load_state_dict(saved.state_dict())
    train(second, resumed, range(10, 30), 30)
    for a, b in zip(undisturbed.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_gradients_are_clipped_as_torch_clips_dense_ones(max_norm: float) -> None:
    sparse, dense = Toy(True), Toy(False)
    ids_BL = torch.tensor([[1, 2, 2], [2, 0, 5]])
    for model in (sparse, dense):
        model(ids_BL).square().sum().backward()
    clip_gradients(sparse.parameters(), max_norm)
    torch.nn.utils.clip_grad_norm_(dense.parameters(), max_norm)
    for a, b in zip(sparse.parameters(), dense.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.to_dense(), b.grad)
