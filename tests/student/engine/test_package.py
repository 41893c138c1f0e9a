"""The engine outside of this project: as a package in an environment without torch, and from C."""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from student.engine.build import COMPILE, LEVELS
from tests.helpers.engine import LIBRARY, needs_engine, written

if LIBRARY.exists():
    from student.engine.python.distill_student import Predictor

pytestmark = needs_engine
ROOT = Path(__file__).parents[3]
SOURCES = ("student/engine", "student/kernels/cpp", "pipeline/text/wordpiece/cpp")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints; if it fails, what it printed is the error."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The light package's wheel, from a copy of the sources, compiled without optimisation, which takes minutes."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "build", "*.egg-info"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "."]
    run(*build, "./student/engine", cwd=folder, CXXFLAGS="-O0")
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has numpy and the light package, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    packages = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip())
    for path in Path(np.__file__).parents[1].glob("numpy*"):
        (packages / path.name).symlink_to(path)
    install = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(packages), str(wheel)]
    run(sys.executable, "-m", "pip", "install", *install, cwd=folder)
    return python


@pytest.mark.slow
def test_one_wheel_is_for_all_pythons(wheel: Path) -> None:
    assert re.fullmatch(r"distill_student-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)


@pytest.mark.slow
def test_a_student_answers_where_only_numpy_is(bare_python: Path, tmp_path: Path) -> None:
    written("diffcat, labels", tmp_path).rename(tmp_path / "mnli.distill")
    [program] = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/engine.md").read_text(), re.MULTILINE | re.DOTALL)
    check = "\nimport sys\nassert not {'torch', 'tokenizers', 'student'} & sys.modules.keys()\n"
    [actual] = ast.literal_eval(run(bare_python, "-I", "-c", program + check, cwd=tmp_path))
    [expected] = Predictor(tmp_path / "mnli.distill").predict(["A man is eating."], ["Nobody eats."])
    assert actual["label"] == expected["label"]
    assert actual["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("name", "texts"),
    [("hybrid", ["the there é"]), ("diffcat, labels", ["the a", "ab ab"]), ("score, short words", ["a ab"])],
)
def test_a_c_program_prints_what_python_answers(tmp_path: Path, name: str, texts: list[str]) -> None:
    shutil.copy(LIBRARY, tmp_path)
    source, include = ROOT / "examples/predict.c", ROOT / "student/engine"
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    link = [LIBRARY.name, "-Wl,-rpath,$ORIGIN"]
    run("cc", *warnings, "-I", include, source, "-o", "predict", *link, cwd=tmp_path)
    predictor, path = Predictor(written(name, tmp_path)), tmp_path / f"{name}.distill"
    [answer] = predictor.predict(*([text] for text in texts))
    expected = []
    for label, value in answer.get("probabilities", answer).items():
        chosen = answer.get("label", ())
        holds = label in chosen if isinstance(chosen, list) else label == chosen
        expected.append(f"{label} {value:.4f}{' <' if holds else ''}")
    assert run(tmp_path / "predict", path, *texts, cwd=tmp_path).splitlines() == expected
    refused = subprocess.run([tmp_path / "predict", path, "a", "b", "c"], capture_output=True, text=True)
    assert (refused.returncode, "usage" in refused.stderr) == (2, True)
    wrong = subprocess.run([tmp_path / "predict", source, *texts], capture_output=True, text=True)
    assert (wrong.returncode, str(source) in wrong.stderr) == (2, True)


def test_every_level_is_compiled_for_its_own_instructions() -> None:
    """A level without flags of its own would be compiled for the machine that builds the wheel."""
    assert all(any(flag.startswith("-march") for flag in flags) for flags in LEVELS.values()) or len(LEVELS) == 1
    assert "-march=native" not in COMPILE
