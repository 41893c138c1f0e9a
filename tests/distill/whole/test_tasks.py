import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from distill.commands import app
from pipeline.tasks.task import corpus_names, load_corpus, load_task, task_names

GLUE = {"cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"}


def test_lists_the_nine_tasks_of_glue() -> None:
    result = CliRunner().invoke(app, ["tasks"])
    assert result.exit_code == 0
    words = set(result.stdout.replace("│", " ").split())
    assert words >= GLUE


def test_lists_tasks_and_corpora_as_json() -> None:
    listed = json.loads(CliRunner().invoke(app, ["tasks", "--json"]).stdout)
    assert [corpus["name"] for corpus in listed["corpora"]] == corpus_names()
    tasks = listed["tasks"]
    assert {task["name"] for task in tasks} == GLUE
    labels = {task["name"]: task["labels"] for task in tasks}
    assert labels["mnli"] == ["entailment", "neutral", "contradiction"]
    assert labels["stsb"] == []


@pytest.mark.parametrize("name", [*task_names(), *corpus_names()])
def test_shows_a_manifest_that_reads_back(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["tasks", "show", name])
    assert result.exit_code == 0
    (tmp_path / "shown.yaml").write_text(result.stdout)
    load = load_task if name in task_names() else load_corpus
    assert load(manifest=tmp_path / "shown.yaml") == load(name)
    own = CliRunner().invoke(app, ["tasks", "show", "--manifest", str(tmp_path / "shown.yaml")])
    assert own.stdout == result.stdout
    shown = json.loads(CliRunner().invoke(app, ["tasks", "show", name, "--json"]).stdout)
    assert shown == yaml.safe_load(result.stdout)


def test_shows_and_checks_a_manifest_of_ones_own(work: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "mine.yaml"
    values = yaml.safe_load((work / "opinion.yaml").read_text())
    manifest.write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(app, ["tasks", "show", "--manifest", str(manifest)])
    assert yaml.safe_load(result.stdout)["labels"] == ["bad", "good"]
    manifest.write_text(yaml.safe_dump(values | {"label": "x", "metrics": ["acuracy"]}))
    result = CliRunner().invoke(app, ["tasks", "show", "--manifest", str(manifest)])
    assert result.exit_code == 2
    assert "'label'. Did you mean 'labels'" in result.stderr
    assert "acuracy" in result.stderr


def test_an_unknown_task_is_one_message_and_exit_code_2() -> None:
    command = [sys.executable, "-c", "from distill.commands import app; app()", "tasks", "show", "mlni"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: --task: ")
    assert all(part in result.stderr for part in ("'mlni'", "'mnli'", "cola, mnli"))
    assert "Traceback" not in result.stderr


def test_nothing_asked_shows_the_commands() -> None:
    for arguments in ([], ["--help"], ["-h"]):
        assert "teacher-dump" in CliRunner().invoke(app, arguments).output
