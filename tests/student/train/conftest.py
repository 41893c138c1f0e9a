"""A run of several tasks, which the tests of this folder read."""

from pathlib import Path

import pytest

from pipeline.sets.reader import ExampleSet
from student.fit import train
from tests.helpers.joint_runs import tasks_config


@pytest.fixture(scope="session")
def task_sets(store: Path, ratings: dict[str, ExampleSet]) -> list[Path]:
    """A set of sentences, one of pairs, one of scores."""
    return [store / "opinion", store / "roles", ratings["score"].root]


@pytest.fixture(scope="session")
def together(task_sets: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the three tasks; read only."""
    folder = tmp_path_factory.mktemp("together")
    train(tasks_config(task_sets, folder, num_train_epochs=3), "distill train-student --tasks opinion,roles,score")
    return folder
