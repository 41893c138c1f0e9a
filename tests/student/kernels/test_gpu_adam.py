"""Adam by rows on the GPU (or in Triton's interpreter) against torch's dense AdamW in float64."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from student.kernels.gpu_adam import GpuRowAdam, Runs, row_sums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
V, STEPS = 8, 14
BETAS, EPS = (0.8, 0.98), 1e-8


def batch(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Common and rare ids, some of them twice, and a gradient for each."""
    random = np.random.default_rng(step)
    ids_T = torch.from_numpy(np.minimum(random.zipf(1.5, 4), V) - 1)
    return ids_T.to(DEVICE), torch.from_numpy(random.normal(size=(4, size)).astype(np.float32)).to(DEVICE)


def rate(step: int) -> float:
    """Rises from 0 and falls to 0."""
    return 0.02 * min(step / 3, 1 - step / STEPS)


def dense_adamw(start_VF: torch.Tensor, weight_decay: float, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Where dense AdamW ends, in float64, and its first moments."""
    table = start_VF.double().requires_grad_()
    optimizer = torch.optim.AdamW([table], betas=BETAS, eps=EPS, weight_decay=weight_decay)
    for step in range(STEPS):
        ids_T, grad_TF = batch(step, start_VF.shape[1])
        table.grad = torch.zeros_like(table).index_add_(0, ids_T, scale * grad_TF.double())
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.step()
    return table.detach(), optimizer.state[table]["exp_avg"]


@pytest.mark.parametrize(("scale", "weight_decay", "bound"), [(1.0, 2.0, 1e-4), (1e-4, 0.5, 1e-2), (1e-7, 0.0, 1e-2)])
def test_ends_where_dense_adamw_ends(scale: float, weight_decay: float, bound: float) -> None:
    torch.manual_seed(0)
    start_VF = torch.randn(V, 3, device=DEVICE)
    table = start_VF.clone()
    optimizer = GpuRowAdam([table], STEPS, 0.0, BETAS, EPS, weight_decay)
    for step in range(STEPS):
        ids_T, grad_TF = batch(step, 3)
        runs = Runs.of(ids_T)
        optimizer.lr.fill_(rate(step))
        optimizer.catch_up(runs)
        sums_TF, _ = row_sums(runs, grad_TF)
        optimizer.step(runs, [sums_TF], torch.tensor(scale, device=DEVICE))
    optimizer.catch_up()
    expected_VF, exp_avg_VF = dense_adamw(start_VF, weight_decay, scale)
    moved = (expected_VF - start_VF).norm()
    assert moved > 0.05
    assert (table - expected_VF).norm() < bound * moved
    torch.testing.assert_close(optimizer.exp_avg[0].double(), exp_avg_VF, rtol=1e-4, atol=scale * 1e-5)


def test_a_row_makes_up_for_what_it_has_missed_by_hand() -> None:
    table = torch.full((3, 1), 8.0, device=DEVICE)
    optimizer = GpuRowAdam([table], 2, lr=1.0, weight_decay=0.5)
    for row in (1, 2):
        runs = Runs.of(torch.tensor([row], device=DEVICE))
        optimizer.catch_up(runs)
        optimizer.step(runs, [torch.ones(1, 1, device=DEVICE)], torch.ones((), device=DEVICE))
    m, v = 0.1 / (1 - 0.9**2), 0.001 / (1 - 0.999**2)  # of a gradient at step 2, corrected
    # the first has not been used; the second was halved and moved by the learning rate; the third was halved twice
    assert table.flatten().tolist() == pytest.approx([8, 8 / 2 - 1, 8 / 4 - m / v**0.5], rel=1e-5)
    optimizer.catch_up()
    missed = 0.9 * m / (0.999 * v) ** 0.5
    assert table.flatten().tolist() == pytest.approx([8 / 4, 3 / 2 - missed, 8 / 4 - m / v**0.5], rel=1e-5)


def test_gradients_of_a_row_are_added_up() -> None:
    ids_T = torch.tensor([5, 2, *[5] * 20, 3], device=DEVICE)
    grad_TF = torch.arange(23.0, device=DEVICE)[:, None] + torch.tensor([0.0, 100.0], device=DEVICE)
    runs = Runs.of(ids_T)
    sums_TF, square = row_sums(runs, grad_TF)
    assert runs.ids_T.tolist() == [2, 3, *[5] * 21]
    fives = sum(range(2, 22))
    expected = [[1.0, 101.0], [22.0, 122.0], [fives, fives + 2100.0]]
    assert sums_TF[:3].tolist() == expected
    assert square.item() == sum(number**2 for row in expected for number in row)


def test_tables_of_several_widths_share_their_counters() -> None:
    torch.manual_seed(0)
    starts = [torch.randn(V, size, device=DEVICE) for size in (2, 600)]  # more columns than are read at once
    alone, together = [start.clone() for start in starts], [start.clone() for start in starts]
    optimizers = [*(GpuRowAdam([table], 3, 0.1) for table in alone), GpuRowAdam(together, 3, 0.1)]
    one = torch.ones((), device=DEVICE)
    for ids in ([1, 1], [2, 3], [1, 4]):
        runs = Runs.of(torch.tensor(ids, device=DEVICE))
        gradients = [row_sums(runs, torch.randn(2, size, device=DEVICE))[0] for size in (2, 600)]
        for optimizer, parts in zip(optimizers, (gradients[:1], gradients[1:], gradients), strict=True):
            optimizer.catch_up(runs)
            optimizer.step(runs, parts, one)
    for table, other, start in zip(alone, together, starts, strict=True):
        assert torch.equal(table, other)
        assert (table[[1, 2, 3, 4]] != start[[1, 2, 3, 4]]).all()


def test_more_steps_than_announced_are_refused() -> None:
    optimizer = GpuRowAdam([torch.zeros(3, 1)], 1, lr=1.0)
    runs = Runs.of(torch.tensor([1]))
    optimizer.step(runs, [torch.ones(1, 1)], torch.ones(()))
    with pytest.raises(RuntimeError, match="more steps"):
        optimizer.step(runs, [torch.ones(1, 1)], torch.ones(()))
