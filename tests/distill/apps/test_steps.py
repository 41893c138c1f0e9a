from pathlib import Path

import pytest

from distill.apps.steps import run_step
from pipeline.errors import DistillError
from tests.helpers.messages import naming


def test_a_step_is_a_command_in_its_folder_and_a_failed_one_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "distill.py").write_text("raise SystemExit('a file of the user')")
    assert run_step(tmp_path, "--version").startswith("distill ")
    assert "$ distill --version" in capsys.readouterr().err
    with pytest.raises(DistillError, match=naming("the step failed", "here")):
        run_step(tmp_path, "sql", "from none", "--store", "here")
