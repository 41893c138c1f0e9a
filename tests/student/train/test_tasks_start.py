"""Students of several tasks with one encoder: what they start from, and what starts from one of them."""

from pathlib import Path

import pytest
import torch

from pipeline.record_file import read_record
from student.model.weights import read_weights
from student.train import train
from tests.helpers.joint_runs import STILL, tasks_config
from tests.helpers.students import tiny_config, weights


def without_bigrams(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that do not depend on which rows there are: each set has its own pairs of tokens."""
    return {name: tensor for name, tensor in tensors.items() if "bigrams" not in name}


def test_a_student_goes_on_alone_with_its_encoder_and_its_head(
    together: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = {"init": together / "roles", "learning_rate": STILL}
    train(tiny_config(store / "roles", tmp_path / "roles", **start), "")
    assert f"{together}/roles" in capsys.readouterr().err
    ours, theirs = (
        without_bigrams(tensors) for tensors in (weights(tmp_path / "roles"), read_weights(together / "roles"))
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-20)
    train(tiny_config(store / "opinion", tmp_path / "opinion", **start), "")  # the encoder alone fits
    assert f"{together}/roles" in capsys.readouterr().err
    ours = without_bigrams(weights(tmp_path / "opinion"))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-20) for name in theirs if name.startswith("encoder."))


def test_an_encoder_starts_from_the_vectors_of_the_first_set_that_has_some(
    store: Path, vectors_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [store / "opinion", vectors_store / "roles"]
    train(tasks_config(sets, tmp_path, learning_rate=STILL), "")
    assert f"{vectors_store}/roles" in capsys.readouterr().err
    settings = {task: read_record(tmp_path / task / "run.json")["settings"] for task in ("opinion", "roles")}
    assert settings["opinion"]["token_vectors_sha256"] is None
    assert settings["roles"]["token_vectors_sha256"]
    train(tiny_config(vectors_store / "roles", tmp_path / "alone", learning_rate=STILL), "")
    ours, theirs = (read_weights(tmp_path / run)["encoder.vectors.table.weight"] for run in ("roles", "alone"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-20)
