"""The engine outside of this project: as a package in an environment without torch, and from C."""

import ast
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from student.engine.build import COMPILE, X86_64
from student.export.engine_file import write_engine_file
from tests.helpers.engine import LIBRARY, LINK, OF_TEXTS, WARNINGS, made, needs_engine, written
from tests.helpers.node import PACKAGE

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
    tasks = {
        "mrpc": (made("diffcat, labels")[0], tmp_path),
        "rte": (copy.deepcopy(made("diffcat, labels")[0]), tmp_path),
    }
    write_engine_file(tasks, made("diffcat, labels")[1], tmp_path / "together.distill")
    programs = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/engine.md").read_text(), re.MULTILINE | re.DOTALL)
    check = "\nimport sys\nassert not {'torch', 'tokenizers', 'student'} & sys.modules.keys()\n"
    written("words", tmp_path).rename(tmp_path / "entities.distill")
    outputs = [run(bare_python, "-I", "-c", program + check, cwd=tmp_path) for program in programs]
    of_one, of_several, of_words = outputs
    assert "probabilities" in of_several
    assert len(ast.literal_eval(of_words)) == 4
    [actual] = ast.literal_eval(of_one)
    [expected] = Predictor(tmp_path / "mnli.distill").predict(["A man is eating."], ["Nobody eats."])
    assert actual["label"] == expected["label"]
    assert actual["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


ARM = {"c++": "aarch64-linux-gnu-g++", "c": "aarch64-linux-gnu-gcc", "emulator": "qemu-aarch64"}
INCLUDE: list[str | Path] = ["-I", ROOT / "student/engine"]
RUST = ["-O", "-D", "warnings", "-L", ".", "-l", "distill_student", "-C", "link-arg=-Wl,-rpath,$ORIGIN"]
JAVA_RELEASE = 22  # the first that calls C without more code
CGO = {"CGO_CFLAGS": f"-I{ROOT}/student/engine", "CGO_LDFLAGS": "-L. -ldistill_student -Wl,-rpath,$ORIGIN"}
COMPILERS: dict[str, list[str | Path]] = {
    "cc": ["cc", "-std=c11", *WARNINGS, *INCLUDE, ROOT / "examples/predict.c", "-o", "predict", *LINK],
    "rustc": ["rustc", *RUST, ROOT / "examples/predict.rs"],
    "go": ["go", "build", ROOT / "examples/predict.go"],
}


@pytest.mark.parametrize("compiler", [*COMPILERS, "javac", "node"])
def test_programs_of_other_languages_print_what_python_answers(tmp_path: Path, compiler: str) -> None:
    shutil.copy(LIBRARY, tmp_path)
    program = compiled(compiler, tmp_path)
    if program is None:
        pytest.skip(f"there is no {compiler}, or only one of a release before {JAVA_RELEASE}")
    for name, texts in {
        "hybrid": ["the there é \U0001f600"],
        "diffcat, labels": ["the a", "ab ab"],
        "score, short words": ["a ab"],
    }.items():
        path = written(name, tmp_path)
        assert run(*program, path, *texts, cwd=tmp_path).splitlines() == printed(path, texts)
        refused = subprocess.run([*program, path, "a", "b", "c"], capture_output=True, text=True, cwd=tmp_path)
        assert (refused.returncode, "usage" in refused.stderr) == (2, True)
        wrong = subprocess.run([*program, __file__, *texts], capture_output=True, text=True, cwd=tmp_path)
        assert (wrong.returncode, __file__ in wrong.stderr) == (2, True)


def compiled(compiler: str, folder: Path) -> list[str | Path] | None:
    """The command of an example, which is compiled into a folder; None where there is no compiler."""
    if compiler == "node":
        return with_package(folder)
    if compiler == "javac":
        java = new_java()
        if java is None:
            return None
        run(java.with_name(compiler), "-d", ".", ROOT / "examples/Predict.java", cwd=folder)
        return [java, "--enable-native-access=ALL-UNNAMED", "-cp", folder, "Predict"]
    if shutil.which(compiler) is None:
        return None
    run(*COMPILERS[compiler], cwd=folder, **CGO, GOCACHE=str(folder / "go"))
    return [folder / "predict"]


def with_package(folder: Path) -> list[str | Path] | None:
    """The command of Node's example, in a folder with the files of the package that npm would publish."""
    program, package = shutil.which("node"), folder / "node_modules/distill-student"
    if program is None:
        return None
    package.mkdir(parents=True)
    for name in ("package.json", *json.loads((PACKAGE / "package.json").read_text())["files"]):
        shutil.copy(PACKAGE / name, package)
    return [program, shutil.copy(ROOT / "examples/predict.mjs", folder)]


def new_java() -> Path | None:
    """The first Java found that is new enough, and has a compiler."""
    for path in (shutil.which("java"), *Path("/usr/lib/jvm").glob("*/bin/java")):
        if path is None or not Path(path).with_name("javac").exists():
            continue
        told = subprocess.run([path, "-version"], capture_output=True, text=True).stderr
        release = re.search(r'version "(\d+)', told)
        if release is not None and int(release[1]) >= JAVA_RELEASE:
            return Path(path)
    return None


def printed(path: Path, texts: list[str]) -> list[str]:
    [answer] = Predictor(path).predict(*([text] for text in texts))
    lines = []
    for label, value in answer.get("probabilities", answer).items():
        chosen = answer.get("label", ())
        holds = label in chosen if isinstance(chosen, list) else label == chosen
        lines.append(f"{label} {value:.4f}{' <' if holds else ''}")
    return lines


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ARM.values())), reason=f"needs {' and '.join(ARM.values())}")
def test_the_engine_for_arm_answers_what_python_answers(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "student/engine/build.py", LIBRARY.name, cwd=tmp_path, CXX=ARM["c++"], CXXFLAGS="-O1")
    run(ARM["c"], *INCLUDE, ROOT / "examples/predict.c", "-o", "predict", *LINK, cwd=tmp_path)
    for name in OF_TEXTS:
        for number, dtypes in enumerate(({}, {"table_dtype": "int8"}, {"table_dtype": "float16"})):
            path = written(name, tmp_path, **dtypes).rename(tmp_path / f"{number}.distill")
            texts = ["the a b [MASK] é the there", "ab"][: 1 + made(name)[0].config.is_pair]
            found = run(
                ARM["emulator"], "-L", "/usr/aarch64-linux-gnu", tmp_path / "predict", path, *texts, cwd=tmp_path
            )
            for line, expected in zip(found.splitlines(), printed(path, texts), strict=True):
                label, value, *mark = line.split(" ")
                expected_label, expected_value, *expected_mark = expected.split(" ")
                assert (label, mark) == (expected_label, expected_mark)
                assert float(value) == pytest.approx(float(expected_value), abs=2e-4)


def test_every_level_is_compiled_for_its_own_instructions() -> None:
    """A level without flags of its own would be compiled for the machine that builds the wheel."""
    assert all(any(flag.startswith("-march") for flag in flags) for flags in X86_64.values())
    assert "-march=native" not in COMPILE
