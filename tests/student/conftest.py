"""What the student's tests share: tiny trained runs."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from student.config import TrainConfig
from student.model.weights import WEIGHTS_FILE
from student.train.train import train


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
