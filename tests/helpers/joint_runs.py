"""Runs of several tasks with one encoder: their flags, and whether two have the same weights."""

from pathlib import Path

import torch

from student.model.weights import read_weights
from student.settings import TrainSettings
from tests.helpers.students import tiny_config

TASKS = ("opinion", "roles", "score")
STILL = 1e-30  # a learning rate that moves nothing


def tasks_config(sets: list[Path], output_dir: Path, **changes: object) -> TrainSettings:
    settings = {"set": (), "tasks": ",".join(map(str, sets)), "per_device_train_batch_size": 16}
    return tiny_config(sets[0], output_dir, **settings | changes)


def same(one: Path, other: Path) -> bool:
    a, b = read_weights(one), read_weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
