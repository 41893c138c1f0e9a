"""Settings of tiny students, and their weights."""

from pathlib import Path

import torch

from student.model.weights import read_weights
from student.settings import TrainSettings


def tiny_config(logit_set: Path, output_dir: Path, **changes: object) -> TrainSettings:
    """Settings that train a tiny student in a moment."""
    settings: dict[str, object] = {
        "set": str(logit_set),
        "store": logit_set.parent,
        "output_dir": output_dir,
        "matrix_size": 3,
        "vector_size": 5,
        "hidden_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 0.01,
        # What training does is seen in exact weights; tests/student/model/test_rounded.py has rounded ones.
        "weights": "float32",
    }
    return TrainSettings.from_flags(**settings | changes)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights a run has kept."""
    return read_weights(run)
