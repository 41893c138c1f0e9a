"""LSTM students through every command that takes a student, and a killed one that goes on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.record_file import read_record
from pipeline.settings import as_flags
from pipeline.training.run import CHECKPOINT
from student.predict.predictor import Predictor
from student.settings import TrainSettings
from student.train import train
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.students import tiny_config, weights

SIZES: dict[str, object] = {
    "matrix_size": None,
    "vector_size": 6,
    "lstm_size": 4,
    "head": "plain-mlp",
    "where": "source_row % 8 > 0",
}
HELD_OUT = "source_row % 8 = 0"
EPOCHS = 8


def config(store: Path, task: str, folder: Path, **changes: object) -> TrainSettings:
    kind: dict[str, dict[str, object]]
    kind = {"opinion": {"embedding": "lstm", "channels": 2}, "roles": {"embedding": "biattentive"}}
    return tiny_config(store / task, folder, **SIZES | kind[task] | changes)


@pytest.fixture(scope="module")
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs: of single sentences, and of pairs."""
    folder = tmp_path_factory.mktemp("lstm")
    for task in ("opinion", "roles"):
        train(config(store, task, folder / task), "")
    return {task: folder / task for task in ("opinion", "roles")}


def told(*arguments: object) -> dict[str, object]:
    result = invoke(*arguments, "--json")
    assert result.exit_code in (0, 1), result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("task", ["opinion", "roles"])
def test_the_same_seed_gives_the_same_bits(runs: dict[str, Path], store: Path, tmp_path: Path, task: str) -> None:
    train(config(store, task, tmp_path / "again"), "")
    ours, theirs = weights(runs[task]), weights(tmp_path / "again")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_frozen_vectors_are_kept_and_unknown_tokens_are_nothing(runs: dict[str, Path]) -> None:
    stored = weights(runs["opinion"])
    frozen_VE, trained_VE = (stored[f"encoder.vectors.{name}.weight"] for name in ("frozen", "trained"))
    known_V = frozen_VE.any(dim=1)
    assert 0 < known_V.sum() < len(known_V)
    assert frozen_VE.abs().max() <= 0.25
    assert torch.equal(known_V, trained_VE.any(dim=1))
    assert (frozen_VE != trained_VE).any(dim=1).sum() == known_V.sum()
    assert read_record(runs["opinion"] / "run.json")["result"]["used_rows"] == int(known_V.sum()) + 1  # and the padding


@pytest.mark.parametrize("task", ["opinion", "roles"])
def test_commands_take_them_as_any_student(runs: dict[str, Path], store: Path, tmp_path: Path, task: str) -> None:
    run, texts = runs[task], ["the cat sees the dog", "anna paid ben ."][: 1 if task == "opinion" else 2]
    record = read_record(run / "run.json")
    evaluation: Any = told("evaluate", run, "--store", store)["validation"]
    assert evaluation == record["result"]["evaluation"]["validation"] | {"judgements": evaluation["judgements"]}
    described: Any = told("describe", run)
    assert described["multiply_adds"]["per_token"] > 0
    assert described["texts_per_second"] > 0
    assert invoke("predict", run, *texts, "--json").exit_code == 0
    assert "certified" in told("certify", run, "--where", HELD_OUT, "--disagreement", 0.9, "--store", store)
    page = tmp_path / "page.html"
    assert invoke("report", run, "--output", page, "--store", store).exit_code == 0
    vectors_NF = Predictor(run).encode(["the cat", ""])
    assert vectors_NF.shape == (2, 8 if task == "opinion" else 48)
    assert vectors_NF[0].any()
    assert not vectors_NF[1].any()
    many = Predictor(run).logits(*([text] * 20 for text in texts))  # more than the short path takes
    np.testing.assert_allclose(Predictor(run).logits(*([text] for text in texts)), many[:1], atol=1e-5)


@pytest.mark.parametrize("flags", [["--html", "x.html"], ["--output-dir", "small", "--tables", "int8"]])
def test_exports_for_matrices_are_refused_by_name(runs: dict[str, Path], flags: list[str]) -> None:
    result = invoke("export", runs["opinion"], *flags)
    assert result.exit_code == 2
    assert all(part in result.stderr for part in (f"{flags[-2]}: ", "--embedding lstm", "--onnx"))


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_student(store: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "v.txt"
    vectors.write_text("the 1 2 3\nanna 3 2 1\nben 0 1 0\n")
    changes = {"optimizer": "adadelta", "learning_rate": None, "init": vectors, "num_train_epochs": EPOCHS}
    changes |= {"early_stopping_patience": EPOCHS, "per_device_train_batch_size": 16}
    interrupted = config(store, "roles", tmp_path / "killed", **changes)
    killed = tmp_path / "killed"
    kill_when(distill("train-student", *as_flags(interrupted)), (killed / CHECKPOINT).exists)
    resumed = train(interrupted, "again")
    whole = train(config(store, "roles", tmp_path / "whole", **changes), "once")
    assert (resumed["settings"]["optimizer"], resumed["settings"]["learning_rate"]) == ("adadelta", 1.0)
    assert resumed["result"] == whole["result"]
    assert len(resumed["result"]["history"]) == EPOCHS
    ours, theirs = weights(killed), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
