import json
from pathlib import Path

import pytest
from transformers import BertConfig

from pipeline.console import show
from pipeline.record_file import read_work_record
from pipeline.sets.record import read_set_record
from tests.helpers.commands import distill, invoke
from tests.helpers.dumps import TRAIN_ROWS, VALIDATION_ROWS


@pytest.fixture
def task(work: Path) -> list[object]:
    return ["--manifest", work / "opinion.yaml", "--data", work / "data", "--max-seq-length", 32]


def test_dump_prints_the_set(task: list[object], teachers: Path, tmp_path: Path) -> None:
    command = ["teacher-dump", *task, "--model-name-or-path", teachers / "opinion", "--store", tmp_path]
    table = invoke(*command)
    assert table.exit_code == 0
    record = read_set_record(tmp_path / "opinion")
    assert record.state == "verified"
    for split, count in (("train", TRAIN_ROWS), ("validation", VALIDATION_ROWS)):
        row = next(line for line in table.stdout.splitlines() if f"│ {split} " in line)
        cells = [cell.strip() for cell in row.split("│")[1:-1]]
        assert cells == [split, str(count), "1", show(record.scores[split]["accuracy"])]
    assert "accuracy" in table.stdout
    assert json.loads(invoke(*command, "--json").stdout) == record.model_dump(mode="json")


def test_plan_loads_no_model_and_writes_nothing(
    task: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=2).save_pretrained(tmp_path / "teacher")
    flags = [*task, "--model-name-or-path", "./teacher", "--store", "store", "--rows-per-shard", 25, "--plan"]
    plan = json.loads(invoke("teacher-dump", *flags, "--json").stdout)
    assert (plan["rows"], plan["shards"]) == ({"train": TRAIN_ROWS, "validation": VALIDATION_ROWS}, 6)
    table = invoke("teacher-dump", *flags)
    assert table.exit_code == 0
    assert f"train {TRAIN_ROWS}, validation {VALIDATION_ROWS}" in table.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["teacher"]


def test_finetune_prints_its_epochs(task: list[object], work: Path, tmp_path: Path) -> None:
    out = tmp_path / "teacher"
    command = ["finetune-teacher", *task, "--model-name-or-path", work / "bert", "--output-dir", out]
    record = json.loads(invoke(*command, "--num-train-epochs", 2, "--json").stdout)
    assert record == read_work_record(out / "finetune.json") | {"judgements": record["judgements"]}
    assert [entry["epoch"] for entry in record["result"]["history"]] == [1, 2]
    assert record["state"] == "finished"
    table = invoke(*command, "--num-train-epochs", 2).stdout
    marked = [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if " best " in line]
    assert [cells[1] for cells in marked] == [str(record["result"]["best"]["epoch"])]


@pytest.mark.slow
def test_a_users_mistake_is_one_message_and_exit_code_2(task: list[object], tmp_path: Path) -> None:
    process = distill("teacher-dump", *task, "--model-name-or-path", "./nowhere", "--store", tmp_path)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert "error: model ./nowhere: " in error
    assert "Traceback" not in error


def test_without_a_task_the_flags_are_named() -> None:
    result = invoke("teacher-dump", "--model-name-or-path", "x")
    assert result.exit_code == 2
    assert "--task NAME" in result.stderr


def test_interrupted_gives_advice_and_exit_code_130(task: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.sources.json_rows.parsed_lines", interrupted)
    result = invoke("teacher-dump", *task, "--model-name-or-path", "x")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr


def test_missing_libraries_are_named(task: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sentencex" else find_spec(name))
    result = invoke("teacher-dump", *task, "--model-name-or-path", "x")
    assert result.exit_code == 2
    assert "'distill-offline[teacher]'" in result.stderr
