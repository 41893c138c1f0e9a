"""The student's commands run where the teacher's libraries, and the teacher itself, are not installed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from importlib.machinery import PathFinder

ABSENT = {"transformers", "datasets", "sentencex", "teacher"}
# the settings, which the command line turns into flags, and the methods that they choose from
ALLOWED = {"teacher", "teacher.settings", "teacher.finetune_settings", "teacher.augment", "teacher.augment.methods"}
ALLOWED |= {"teacher.models", "teacher.models.model_settings"}
ALLOWED |= {"teacher.imported", "teacher.imported.import_settings"}


def absent(name):
    return name.split(".")[0] in ABSENT and name not in ALLOWED


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if absent(name) else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from distill.commands import app

codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as end:
        codes.append(end.code)
present = [name for name in sys.modules if absent(name)]
print("RESULT", json.dumps({"codes": codes, "present": present, "torch": "torch" in sys.modules}))
"""


def run(commands: list[list[str]], cwd: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    last = process.stdout.strip().splitlines()[-1:] or [""]
    assert last[0].startswith("RESULT "), process.stderr
    return process, json.loads(last[0].removeprefix("RESULT "))


@pytest.mark.slow
def test_student_commands_need_no_teacher(
    vectors_store: Path, token_store: Path, vector_store: Path, tmp_path: Path
) -> None:
    for name, there in {"store": vectors_store, "tokens": token_store, "vectors": vector_store}.items():
        shutil.copytree(there, tmp_path / name)
    sizes = ["--matrix-size", "3", "--vector-size", "5"]
    bert = ["--embedding", "bert", "--num-train-epochs", "1"]
    training = [*sizes, "--hidden-size", "8", "--num-train-epochs", "1"]
    pretraining = [*sizes, "--per-device-train-batch-size", "9", "--max-steps", "2"]
    commands = [
        ["train-student", "--task", "roles", "--store", "store", "--output-dir", "run", "--init", "teacher", *training],
        ["evaluate", "run", "--store", "store"],
        ["train-student", "--task", "roles", "--store", "store", "--output-dir", "bert", *bert],
        ["predict", "bert", "anna paid ben .", "ben paid anna ."],
        ["predict", "run", "anna paid ben .", "ben paid anna ."],
        ["recode", "hidden", "--store", "tokens", "--name", "new", "--codec", "sampled-9"],
        ["recode", "hidden", "--store", "tokens", "--plan", "--sample", "20"],
        ["pretrain-student", "--set", "new", "--store", "tokens", "--output-dir", "mlm", *pretraining],
        ["sql", "select candidate, sum(probability) from new_words group by all", "--store", "tokens"],
        ["verify", "pca", "--store", "vectors"],
        ["pretrain-student", "--set", "pca", "--store", "vectors", "--output-dir", "encoder", *pretraining],
        ["evaluate", "encoder", "--store", "vectors"],
        ["sql", "select max(scale) from int8", "--store", "vectors"],
    ]
    process, result = run(commands, tmp_path)
    assert result == {"codes": [0] * 13, "present": [], "torch": True}, process.stderr
    assert "agreement" in process.stdout
    assert all((tmp_path / name / "model.safetensors").exists() for name in ("run", "bert", "mlm", "encoder"))


ANSWERING = """
import sys
from distill import Predictor
print(Predictor(sys.argv[1])(["the food was lovely ."])[0]["label"])
print(sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[2:])))
"""


@pytest.mark.slow
def test_answering_loads_no_libraries_of_training(opinion_run: Path) -> None:
    libraries = ["accelerate", "datasets", "duckdb", "fsspec", "scipy", "sklearn", "transformers", "typer"]
    arguments = [sys.executable, "-c", ANSWERING, str(opinion_run), *libraries]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert process.stdout.splitlines() in (["bad", "[]"], ["good", "[]"]), process.stdout + process.stderr


def test_teacher_commands_say_what_to_install(tmp_path: Path) -> None:
    process, result = run([["teacher-dump", "--task", "rte"]], tmp_path)
    assert result == {"codes": [2], "present": [], "torch": False}
    assert "distill-offline[teacher]" in process.stderr
    assert "Traceback" not in process.stderr
