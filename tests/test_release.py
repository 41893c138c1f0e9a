"""What is released: the package has every file of the repository that belongs to it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.release_files import differences, tracked

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="needs the repository")
def test_the_package_has_all_files_of_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    build = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "built")]
    subprocess.run([sys.executable, "setup.py", "-q", *build], check=True, capture_output=True)
    built = {str(path.relative_to(tmp_path / "built")) for path in (tmp_path / "built").rglob("*") if path.is_file()}
    # The build writes the types of the public functions.
    assert [*differences(built, tracked() | {"distill/__init__.pyi"})] == []
