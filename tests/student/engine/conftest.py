"""The files of all kinds of students that the engine reads."""

from pathlib import Path

import pytest

from tests.helpers.engine import STUDENTS, written


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each student, in float32."""
    folder = tmp_path_factory.mktemp("engine")
    return {name: written(name, folder) for name in STUDENTS}
