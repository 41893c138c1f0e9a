"""What the student's tests share: tiny trained runs, and logit sets of a task with scores."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.demo.data import GOOD
from pipeline.logit_set.reader import LogitSet, open_set
from pipeline.targets import make_target
from pipeline.tasks import Objective, load_task
from student.config import TrainConfig
from student.train import train
from student.weights import WEIGHTS_FILE
from teacher.dump import dump
from teacher.models import new_classifier
from teacher.training import save_teacher
from tests.conftest import dump_config

RATINGS = """
name: ratings
type: regression
columns: {sentence1: sentence1, label: score}
score_range: [1, 6]
bins: {low: 1, high: 6, width: 1}
metrics: [pearson, spearmanr]
splits: {train: , validation: }
"""


def tiny_config(logit_set: Path, output_dir: Path, **changes: object) -> TrainConfig:
    """Settings that train a tiny student in a moment."""
    settings: dict[str, object] = {
        "logits": str(logit_set),
        "store": logit_set.parent,
        "output_dir": output_dir,
        "matrix_size": 3,
        "vector_size": 5,
        "hidden_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
    }
    return TrainConfig.from_flags(**settings | changes)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights a run has kept."""
    return load_file(run / WEIGHTS_FILE)


@pytest.fixture(scope="session")
def opinion_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the single-sentence task; read only."""
    folder = tmp_path_factory.mktemp("opinion_run")
    train(tiny_config(store / "opinion", folder), "distill train-student --task opinion")
    return folder


@pytest.fixture(scope="session")
def roles_run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the pair task; read only."""
    folder = tmp_path_factory.mktemp("roles_run")
    train(tiny_config(store / "roles", folder), "distill train-student --task roles")
    return folder


@pytest.fixture(scope="session")
def ratings(work: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LogitSet]:
    """Sets of a task with scores, by the kind of their target; a sentence's score is the number of its good word."""
    folder = tmp_path_factory.mktemp("ratings")
    manifest = folder / "ratings.yaml"
    manifest.write_text(RATINGS)
    for split in ("train", "validation"):
        lines = (work / f"data/opinion/{split}.jsonl").read_text().splitlines()
        texts = [json.loads(line)["sentence1"] for line in lines]
        rows = [{"sentence1": t, "score": next(k + 1 for k, word in enumerate(GOOD) if word in t)} for t in texts]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task(manifest=manifest)
    objectives: dict[str, Objective] = {"score": "regression", "bins": "classification"}
    for kind, objective in objectives.items():
        torch.manual_seed(1)
        teacher = new_classifier(task, make_target(task, objective), str(work / "bert"), None, 32)
        torch.nn.init.normal_(teacher.model.classifier.weight)  # its scores shall differ from row to row
        save_teacher(teacher.model, teacher.name, teacher.revision, folder / f"teacher-{kind}")
        places = {"manifest": manifest, "data": folder, "model_name_or_path": str(folder / f"teacher-{kind}")}
        dump(dump_config(work, "ratings", folder / "store", name=kind, **places), "distill teacher-dump")
    return {kind: open_set(folder / "store" / kind) for kind in objectives}
