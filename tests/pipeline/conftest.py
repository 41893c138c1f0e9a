"""A private copy of a dumped set, for tests that damage it."""

import shutil
from pathlib import Path

import pytest

from pipeline.logit_set.reader import LogitSet, open_set


@pytest.fixture
def own_set(opinion_set: LogitSet, tmp_path: Path) -> LogitSet:
    """The single-sentence set, free to be changed."""
    shutil.copytree(opinion_set.root, tmp_path / "own" / "opinion")
    return open_set(tmp_path / "own" / "opinion")
