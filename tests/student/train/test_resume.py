import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from pipeline.flat_settings import as_flags
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.training.run import CHECKPOINT
from student.settings import TrainSettings
from student.train import train
from tests.helpers.commands import distill, kill_when
from tests.helpers.rewritten_sets import rewritten, with_logits
from tests.helpers.students import tiny_config, weights

EPOCHS = 40


def long_config(logit_set: Path, output_dir: Path, **changes: object) -> TrainSettings:
    size = {"num_train_epochs": EPOCHS, "early_stopping_patience": EPOCHS, "per_device_train_batch_size": 4}
    return tiny_config(logit_set, output_dir, **size | changes)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_student(store: Path, roles_set: ExampleSet, tmp_path: Path) -> None:
    other = rewritten(roles_set, tmp_path / "other", with_logits(lambda row: [row % 5, 2.0]))
    query = "select source_row, variant, mix([roles.logits, other.logits], [1, 2]) as logits, "
    query += "1 + roles.label as weight from roles join other using (split, source_row, variant)"
    changes = {"set": (str(store / "roles"), str(other.root)), "query": query}
    interrupted, undisturbed = (
        long_config(store / "roles", tmp_path / name, **changes) for name in ("killed", "whole")
    )
    killed = tmp_path / "killed"
    kill_when(distill("train-student", *as_flags(interrupted)), (killed / CHECKPOINT).exists)
    assert json.loads((killed / "run.json").read_text())["state"] == "running"
    with safe_open(killed / CHECKPOINT, framework="pt") as file:
        done = json.loads(file.metadata()["progress"])["history"]
    assert 1 <= len(done) < EPOCHS

    resumed, whole = train(interrupted, "again"), train(undisturbed, "once")
    assert resumed["state"] == "finished"
    assert resumed["result"] == whole["result"]
    assert resumed["result"]["history"][: len(done)] == done
    assert not (killed / CHECKPOINT).exists()
    ours, theirs = weights(killed), weights(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
