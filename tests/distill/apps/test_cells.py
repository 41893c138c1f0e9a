import subprocess
import sys
from pathlib import Path

import pytest

from distill.apps.cells import Command, run_command
from pipeline.errors import DistillError
from pipeline.record_file import read_work_record
from tests.helpers.messages import naming

SIZES = ("--matrix-size", "2", "--vector-size", "2", "--hidden-size", "4", "--num-train-epochs", "1")


@pytest.mark.slow
def test_a_command_is_run_once_for_the_same_files(
    store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows, run = tmp_path / "rows.txt", tmp_path / "run"
    arguments = ("train-student", "--set", str(store / "opinion"), "--output-dir", str(run), *SIZES)
    command = Command(arguments, run / "run.json", ("text", rows), tmp_path / "records" / "done.json")
    rows.write_text("rows")
    first = command.run_once()
    assert (run / "model.safetensors").is_file()
    assert first is not None
    assert first > 0
    record = read_work_record(command.record)
    assert (record["state"], record["result"]) == ("finished", {"seconds": first})
    assert "$ distill train-student" in capfd.readouterr().err
    assert command.run_once() == first
    assert capfd.readouterr().err == ""
    rows.write_text("other rows")
    again = command.run_once()
    assert "$ distill train-student" in capfd.readouterr().err
    assert read_work_record(command.record)["settings"]["reads"] != record["settings"]["reads"]
    assert again is None  # the command found its run finished: that was no training


@pytest.mark.slow
def test_a_command_that_fails_has_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = Command(("verify", "none"), tmp_path / "x", (), tmp_path / "done.json")
    with pytest.raises(DistillError, match=naming("exit code 2", "distill verify none")):
        command.run_once()
    assert "'none'" in capfd.readouterr().err
    assert read_work_record(command.record)["state"] == "running"


def test_a_command_ends_with_whoever_started_it(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "distill.commands.parent", "quickstart", "--demo", "--output-dir", str(tmp_path)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 1


def test_a_step_is_a_command_in_its_folder_and_a_failed_one_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "distill.py").write_text("raise SystemExit('a file of the user')")
    assert run_command(["--version"], tmp_path).startswith("distill ")
    assert "$ distill --version" in capsys.readouterr().err
    with pytest.raises(DistillError, match=naming("the step failed", "here")):
        run_command(["sql", "from none", "--store", "here"], tmp_path)


def test_a_step_that_is_killed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "killed"))
    (tmp_path / "killed").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "killed").chmod(0o700)
    with pytest.raises(DistillError, match=naming("memory", "sql")):
        run_command(["sql"], tmp_path)
