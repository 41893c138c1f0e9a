"""Adam on the rows of a batch against dense Adam over whole tables; in float64 by torch, in float32 native."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from student.encoders.encoder import Encoder
from student.kernels import native
from student.row_adam import RowAdam, make_optimizer
from student.settings import Optimizer

V, F, CLASSES, PAD = 60, 5, 3, 0
GOLD = torch.tensor([0, 1, 2, 0])
DTYPES = [
    pytest.param(torch.float64, id="torch"),
    pytest.param(
        torch.float32, id="compiled", marks=pytest.mark.skipif(native.library() is None, reason="nothing is built")
    ),
]


class Toy(nn.Module):
    """Sums of two tables' rows, and a linear classifier."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.Embedding(V, size, padding_idx=PAD) for size in (F, 40))
        self.head = nn.Linear(F + 40, CLASSES)
        self.to(dtype)

    def forward(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """Logits from the tables' rows of each token, [B, L, X] per table."""
        return self.head(torch.cat([row.sum(dim=1) for row in rows], dim=1))  # type: ignore[no-any-return]


def step(
    model: Toy, optimizer: torch.optim.Optimizer, ids_BL: torch.Tensor, gold_B: torch.Tensor, scale: float
) -> None:
    """One step; by rows, if it is a RowAdam."""
    tables = [table for table in model.tables if isinstance(table, nn.Embedding)]
    if not isinstance(optimizer, RowAdam):
        loss = functional.cross_entropy(model([table(ids_BL) for table in tables]), gold_B) * scale
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    else:
        used = optimizer.use(ids_BL.flatten())
        rows = [table.weight.detach()[ids_BL].requires_grad_() for table in tables]
        (functional.cross_entropy(model(rows), gold_B) * scale).backward()  # type: ignore[no-untyped-call]
        for buffer, row in zip(used.buffers(), rows, strict=True):
            assert row.grad is not None
            buffer.copy_(row.grad.flatten(0, 1))
        optimizer.clip_gradients(1.0)
    optimizer.step()
    optimizer.zero_grad()


def train(model: Toy, optimizer: torch.optim.Optimizer, steps: range, total: int, scale: float = 1.0) -> None:
    """Steps on rare and common ids, padding among them; a learning rate that rises from 0 and falls to 0."""
    for number in steps:
        random = np.random.default_rng(number)
        ids_BL = torch.from_numpy(np.minimum(random.zipf(1.3, (4, 5)), V) - 1)
        gold_B = torch.from_numpy(random.integers(CLASSES, size=4))
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(number / 5, 1 - number / total)
        step(model, optimizer, ids_BL, gold_B, scale)
    if isinstance(optimizer, RowAdam):
        optimizer.catch_up()


def row_adam(model: Toy, weight_decay: float = 0.0) -> RowAdam:
    rates = (0.1, weight_decay, weight_decay)
    return RowAdam(model.tables.parameters(), model.head.parameters(), *rates, padding_idx=PAD)


def distance(model: Toy, other: Toy) -> float:
    """Of all rows but the padding's."""
    pairs = zip(model.tables.parameters(), other.tables.parameters(), strict=True)
    return float(torch.stack([(a - b).detach()[1:].norm() for a, b in pairs]).norm())


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("scale", "bound"), [(1.0, 1e-3), (1e-4, 1e-2), (1e-7, 1e-2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_where_dense_adam_ends(dtype: torch.dtype, scale: float, bound: float, weight_decay: float) -> None:
    start, dense, rows = Toy(dtype), Toy(torch.float64), Toy(dtype)
    dense.load_state_dict(start.state_dict())
    train(dense, torch.optim.AdamW(dense.parameters(), weight_decay=weight_decay), range(200), 200, scale)
    train(rows, row_adam(rows, weight_decay), range(200), 200, scale)
    assert distance(dense, start) > 0.1
    assert distance(rows, dense) < bound * distance(dense, start)
    for table, first in zip(rows.tables.parameters(), start.tables.parameters(), strict=True):
        assert torch.equal(table[PAD], first[PAD])


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.skipif(native.library() is None, reason="nothing is built")
def test_compiled_and_plain_steps_are_the_same(scale: float) -> None:
    compiled_one, plain = Toy(torch.float32), Toy(torch.float32)
    plain.double()
    train(compiled_one, row_adam(compiled_one, 0.1), range(120), 200, scale)
    train(plain, row_adam(plain, 0.1), range(120), 200, scale)
    for a, b in zip(compiled_one.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=2e-5)


def test_skipping_the_other_rows_would_end_elsewhere() -> None:
    start, dense, skipping = Toy(torch.float64), Toy(torch.float64), Toy(torch.float64)
    train(dense, torch.optim.Adam(dense.parameters()), range(200), 200)
    for table in skipping.tables:
        table.sparse = True  # type: ignore[assignment]
    sparse, head = torch.optim.SparseAdam(skipping.tables.parameters()), torch.optim.Adam(skipping.head.parameters())
    for number in range(200):
        random = np.random.default_rng(number)
        ids_BL = torch.from_numpy(np.minimum(random.zipf(1.3, (4, 5)), V) - 1)
        gold_B = torch.from_numpy(random.integers(CLASSES, size=4))
        functional.cross_entropy(skipping([table(ids_BL) for table in skipping.tables]), gold_B).backward()  # type: ignore[no-untyped-call]
        for optimizer in (sparse, head):
            optimizer.param_groups[0]["lr"] = 0.02 * min(number / 5, 1 - number / 200)
            optimizer.step()  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
    assert distance(skipping, dense) > 0.1 * distance(dense, start)


def move(table: nn.Embedding, optimizer: RowAdam, row: int, gradient: float = 1.0) -> None:
    used = optimizer.use(torch.tensor([row]))
    used.buffers()[0].fill_(gradient)
    optimizer.step()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_makes_up_for_what_it_has_missed_by_hand(dtype: torch.dtype) -> None:
    table = nn.Embedding(3, 1, dtype=dtype)
    nn.init.zeros_(table.weight)
    optimizer = RowAdam([table.weight], [], lr=1.0)
    move(table, optimizer, 1)
    move(table, optimizer, 2)
    assert table.weight[1].item() == pytest.approx(-1.0)  # Adam's first step has the length of the learning rate
    m, v = 0.1 * 0.9 / (1 - 0.9**2), 0.001 * 0.999 / (1 - 0.999**2)
    optimizer.use(torch.tensor([1]))
    assert table.weight[1].item() == pytest.approx(-1.0 - m / v**0.5, rel=1e-5)
    assert table.weight[0].item() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_decays_at_every_step_by_hand(dtype: torch.dtype) -> None:
    table = nn.Embedding(3, 1, dtype=dtype)
    nn.init.ones_(table.weight)
    optimizer = RowAdam([table.weight], [], lr=0.5, table_weight_decay=0.2, padding_idx=0)
    for _ in range(3):
        move(table, optimizer, 1, gradient=0.0)
    optimizer.catch_up()
    assert table.weight.flatten().tolist() == pytest.approx([1, 0.9**3, 0.9**3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_a_rows_tokens_add_up_without_padding(dtype: torch.dtype) -> None:
    one, other = (nn.Embedding(4, 2, dtype=dtype) for _ in range(2))
    other.load_state_dict(one.state_dict())
    first, second = (RowAdam([table.weight], [], lr=0.1, padding_idx=PAD) for table in (one, other))
    rows_of = torch.tensor([[1.0, 2], [9, 9], [3, -5], [2, 2]], dtype=dtype)
    first.use(torch.tensor([2, PAD, 2, 3])).buffers()[0].copy_(rows_of)
    second.use(torch.tensor([3, 2])).buffers()[0].copy_(torch.tensor([[2.0, 2], [4, -3]], dtype=dtype))
    for optimizer in (first, second):
        optimizer.clip_gradients(1.0)
        optimizer.step()
    torch.testing.assert_close(one.weight, other.weight)
    m_VX = first.state[one.weight]["exp_avg"]
    torch.testing.assert_close(m_VX[2], 0.1 * torch.tensor([4.0, -3], dtype=dtype) / (16 + 9 + 8) ** 0.5)
    assert not m_VX[PAD].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_id_beyond_the_table_is_refused(dtype: torch.dtype) -> None:
    optimizer = RowAdam([nn.Embedding(4, 2, dtype=dtype).weight], [], lr=0.1)
    with pytest.raises(IndexError):
        optimizer.use(torch.tensor([1, 4]))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), often=st.integers(1, 30), dtype=st.sampled_from([p.values[0] for p in DTYPES]))
def test_bringing_rows_up_to_date_twice_changes_nothing(seed: int, often: int, dtype: torch.dtype) -> None:
    rows, dense = nn.Embedding(V, F, dtype=dtype), nn.Embedding(V, F, dtype=torch.float64)
    nn.init.ones_(rows.weight)
    nn.init.ones_(dense.weight)
    row_optimizer = RowAdam([rows.weight], [], lr=0.01)
    dense_optimizer = torch.optim.Adam(dense.parameters(), lr=0.01)
    random = np.random.default_rng(seed)
    for number in range(40):
        ids_T, factor_TF = torch.from_numpy(random.integers(V, size=4)), torch.from_numpy(random.normal(size=(4, F)))
        if number % often == 0:
            row_optimizer.catch_up()
        row_optimizer.use(torch.from_numpy(random.integers(V, size=9)))
        row_optimizer.use(ids_T).buffers()[0].copy_(factor_TF)
        row_optimizer.step()
        (dense(ids_T) * factor_TF).sum().backward()
        dense_optimizer.step()
        dense_optimizer.zero_grad()
    row_optimizer.catch_up()
    tolerance = 4e-6 if dtype == torch.float64 else 1e-5  # of the interpolation between large and small moments
    torch.testing.assert_close(rows.weight.double(), dense.weight, rtol=0, atol=tolerance)
    for name in ("exp_avg", "exp_avg_sq", "step"):
        actual, expected = row_optimizer.state[rows.weight][name].double(), dense_optimizer.state[dense.weight][name]
        torch.testing.assert_close(actual, expected.double(), rtol=tolerance, atol=tolerance**1.5)


def test_with_dense_gradients_it_is_torchs_adam() -> None:
    one, other = Toy(torch.float64), Toy(torch.float64)
    optimizers = (torch.optim.Adam(one.parameters(), fused=True), row_adam(other))
    for model, optimizer in zip((one, other), optimizers, strict=True):
        for number in range(20):
            ids_BL = torch.from_numpy(np.random.default_rng(number).integers(V, size=(4, 5)))
            rows = [table(ids_BL) for table in model.tables]
            loss = functional.cross_entropy(model(rows), GOLD)
            loss.backward()  # type: ignore[no-untyped-call]
            for group in optimizer.param_groups:
                group["lr"] = 0.1
            if isinstance(optimizer, RowAdam):
                optimizer.clip_gradients(0.01)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_whole_tables_may_follow_those_of_rows(dtype: torch.dtype) -> None:
    start, dense, rows = Toy(dtype), Toy(torch.float64), Toy(dtype)
    dense.load_state_dict(start.state_dict())
    optimizers = (torch.optim.AdamW(dense.parameters(), weight_decay=0.1), row_adam(rows, 0.1))
    for model, optimizer in zip((dense, rows), optimizers, strict=True):
        train(model, optimizer, range(1, 20), 30)
        for _ in range(3):
            loss = functional.cross_entropy(model([t(torch.arange(20).view(4, 5)) for t in model.tables]), GOLD)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    assert distance(rows, dense) < 1e-3 * distance(dense, start)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_state_goes_on_as_if_never_saved(dtype: torch.dtype) -> None:
    undisturbed, first = Toy(dtype), Toy(dtype)
    optimizer = row_adam(undisturbed)
    train(undisturbed, optimizer, range(10), 30)
    train(undisturbed, optimizer, range(10, 30), 30)
    saved = row_adam(first)
    train(first, saved, range(10), 30)
    second = Toy(dtype)
    second.load_state_dict(first.state_dict())
    resumed = row_adam(second)
    resumed.load_state_dict(saved.state_dict())
    train(second, resumed, range(10, 30), 30)
    for a, b in zip(undisturbed.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_thousands_of_missed_steps_are_made_up_for(dtype: torch.dtype) -> None:
    """More steps than are kept in one piece, and more than matter."""
    rows, dense = nn.Embedding(2, 3, dtype=dtype), nn.Embedding(2, 3, dtype=torch.float64)
    dense.load_state_dict(rows.state_dict())
    optimizer = RowAdam([rows.weight], [], lr=0.01, table_weight_decay=0.01)
    whole = torch.optim.AdamW(dense.parameters(), lr=0.01, weight_decay=0.01)
    for number in range(2500):
        row = int(number in {0, 1200})
        move(rows, optimizer, row, gradient=0.5)
        dense.weight.grad = torch.zeros_like(dense.weight)
        dense.weight.grad[row] = 0.5
        whole.step()
    optimizer.catch_up()
    torch.testing.assert_close(
        rows.weight.double(), dense.weight, rtol=0, atol=2e-3 if dtype == torch.float32 else 1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_parameter_without_a_gradient_rests_as_in_torch(dtype: torch.dtype) -> None:
    """Heads of tasks: each has its own number of steps, by which its moments are corrected."""
    table, start = nn.Embedding(3, 1, dtype=dtype), torch.tensor([1.0, -2.0, 0.5], dtype=dtype)
    ours, theirs = ([start.clone().requires_grad_() for _ in range(3)] for _ in range(2))
    optimizer, dense = RowAdam([table.weight], ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.0)
    for number, turn in enumerate((1, 2, 2, 1, 2)):
        for parameter in (ours[0], ours[turn], theirs[0], theirs[turn]):
            parameter.grad = (number - 1.5) * start
        move(table, optimizer, 1)
        dense.step()
        optimizer.zero_grad()
        dense.zero_grad()
    for parameter, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(ours[1], ours[2], atol=1e-3)


EPS = 1e-6


class OneTable(Encoder):
    """An encoder with a table of one row, and nothing else."""

    pad_id = 1

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1, 2, _weight=weight[None])

    def tables(self) -> list[torch.nn.Embedding]:
        return [self.table]

    def reduce(self, ids_T: torch.Tensor, starts_S: torch.Tensor, rows: object = None) -> torch.Tensor:
        raise NotImplementedError

    @property
    def multiply_adds(self) -> int:
        return 0


def test_two_steps_by_hand() -> None:
    encoder = OneTable(torch.tensor([1.0, 5.0]))
    weight = encoder.table.weight
    optimizer = make_optimizer(Optimizer(optimizer="adadelta", learning_rate=1.0, max_grad_norm=100.0), encoder)
    expected, of_gradient, of_moves = 1.0, 0.0, 0.0
    for gradient in (0.5, -2.0):
        optimizer.step((weight * torch.tensor([gradient, 0.0])).sum())
        of_gradient = 0.95 * of_gradient + 0.05 * gradient**2
        move = math.sqrt(of_moves + EPS) / math.sqrt(of_gradient + EPS) * gradient
        of_moves = 0.95 * of_moves + 0.05 * move**2
        expected -= move
        torch.testing.assert_close(weight.detach(), torch.tensor([[expected, 5.0]]))


def test_gradients_are_clipped_to_a_norm() -> None:
    encoder = OneTable(torch.zeros(2))
    encoder.table.weight.grad = torch.tensor([[3.0, 4.0]])
    make_optimizer(Optimizer(optimizer="adadelta", learning_rate=1.0, max_grad_norm=1.0), encoder).clip(1.0)
    torch.testing.assert_close(encoder.table.weight.grad, torch.tensor([[0.6, 0.8]]))


def test_it_has_its_own_rate_unless_told() -> None:
    assert Optimizer().rate == 5e-4
    assert Optimizer(optimizer="adadelta").rate == 1.0
    assert Optimizer(optimizer="adadelta", learning_rate=0.1).rate == 0.1
