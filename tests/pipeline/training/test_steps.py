from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from pipeline.errors import IntegrityError
from pipeline.training.steps import (
    linear_decay,
    load_checkpoint,
    save_checkpoint,
    seed_step,
    set_learning_rate,
    shuffled_batches,
    write_tensors,
)


def new_net(seed: int, width: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 2))
    net = torch.nn.Sequential(*layers)
    return net, torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.01)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        seed_step(7, step)
        set_learning_rate(optimizer, 0.1 * linear_decay(step, 10))
        optimizer.zero_grad()
        net(torch.randn(8, 3)).pow(2).sum().backward()
        optimizer.step()


def test_resumed_training_equals_undisturbed_training(tmp_path: Path) -> None:
    net, optimizer = new_net(0)
    train(net, optimizer, range(5))
    save_checkpoint(tmp_path / "checkpoint", net, optimizer, {"step": 5, "best": 0.25, "history": [{"é": None}]})
    train(net, optimizer, range(5, 10))
    resumed, its_optimizer = new_net(1)
    progress = load_checkpoint(tmp_path / "checkpoint", resumed, its_optimizer)
    assert progress == {"step": 5, "best": 0.25, "history": [{"é": None}]}
    train(resumed, its_optimizer, range(5, 10))
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            assert torch.equal(value, its_optimizer.state_dict()["state"][number][key]), key


def test_checkpoint_before_the_first_step(tmp_path: Path) -> None:
    net, optimizer = new_net(0)
    assert load_checkpoint(tmp_path / "checkpoint", net, optimizer) is None
    save_checkpoint(tmp_path / "checkpoint", net, optimizer, {"step": 0})
    assert load_checkpoint(tmp_path / "checkpoint", *new_net(1)) == {"step": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_unusable_checkpoints(tmp_path: Path) -> None:
    net, optimizer = new_net(0)
    save_checkpoint(tmp_path / "whole", net, optimizer, {})
    (tmp_path / "torn").write_bytes((tmp_path / "whole").read_bytes()[:-5])
    (tmp_path / "text").write_text("hello, this is not a checkpoint")
    (tmp_path / "empty").touch()
    save_checkpoint(tmp_path / "other", *new_net(0, width=5), {})
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign")
    for name in ("torn", "text", "empty", "other", "foreign"):
        with pytest.raises(IntegrityError, match=f"{name}: not a usable checkpoint"):
            load_checkpoint(tmp_path / name, net, optimizer)


@given(
    lengths=st.lists(st.integers(0, 50), max_size=400),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 5),
)
def test_batches_hold_every_row_once(lengths: list[int], batch_size: int, seed: int, epoch: int) -> None:
    batches = shuffled_batches(lengths, batch_size, seed, epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= batch_size for batch in batches)
    torch.manual_seed(epoch)
    np.random.default_rng().random()
    assert batches == shuffled_batches(lengths, batch_size, seed, epoch)


def test_batches_differ_by_seed_and_epoch_and_hold_like_lengths() -> None:
    lengths = [k % 50 + 1 for k in range(500)]
    first = shuffled_batches(lengths, 10, seed=1, epoch=0)
    assert first != shuffled_batches(lengths, 10, seed=1, epoch=1)
    assert first != shuffled_batches(lengths, 10, seed=2, epoch=0)
    # one window of 50 batches: sorted lengths 1 1 1 1 1 1 1 1 1 1, 2 2 …
    assert sorted({lengths[row] for row in batch}.pop() for batch in first) == list(range(1, 51))
    assert [lengths[batch[0]] for batch in first] != sorted(lengths[batch[0]] for batch in first)


def test_linear_decay() -> None:
    assert [linear_decay(step, 4) for step in range(6)] == [1, 0.75, 0.5, 0.25, 0, 0]
    assert [linear_decay(step, 6, warmup_steps=2) for step in range(7)] == [0, 0.5, 1, 0.75, 0.5, 0.25, 0]
    assert linear_decay(3, 3, warmup_steps=3) == 0
    assert linear_decay(0, 0) == 0


def test_learning_rate_reaches_every_group() -> None:
    net, _ = new_net(0)
    first, *others = net.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": others, "lr": 2.0}])
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_seed_of_a_step() -> None:
    draws = []
    for seed, step, rank in ((1, 2, 0), (1, 2, 0), (1, 3, 0), (2, 2, 0), (1, 2, 1)):
        seed_step(seed, step, rank)
        draws.append(float(torch.rand(1)))
    assert draws[0] == draws[1]
    assert len(set(draws)) == 4


def test_weights_are_as_readable_as_other_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "weights.safetensors", {"a": torch.ones(1)})
    (tmp_path / "other").touch()
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
