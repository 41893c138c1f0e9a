from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.errors import IntegrityError
from pipeline.training.checkpoint import check_tensors, load_checkpoint, save_checkpoint, write_tensors
from pipeline.training.loop import seed_step
from pipeline.training.schedule import linear_decay, scale_learning_rates
from tests.helpers.messages import naming


def new_net(seed: int, width: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    layers = (torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 2))
    net = torch.nn.Sequential(*layers)
    return net, torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.01)


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        seed_step(7, step)
        scale_learning_rates(optimizer, linear_decay(step, 10))
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
        with pytest.raises(IntegrityError, match=naming(f"{name}: ")):
            load_checkpoint(tmp_path / name, net, optimizer)


def test_weights_are_as_readable_as_other_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "weights.safetensors", {"a": torch.ones(1)})
    (tmp_path / "other").touch()
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"größe": torch.arange(3.0), 'a"b': torch.zeros(2, dtype=torch.int8)}
    metadata = {f"key{number}": "wert ü\n" for number in range(6)}
    files = set()
    for number in range(5):
        path = tmp_path / f"{number}.safetensors"
        checksum = write_tensors(path, tensors, metadata)
        assert check_tensors(path) == checksum
        files.add(path.read_bytes())
    assert len(files) == 1
    with safe_open(path, framework="pt") as file:
        assert {name: value for name, value in file.metadata().items() if name in metadata} == metadata
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())
