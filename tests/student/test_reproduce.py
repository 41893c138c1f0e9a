import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from distill.commands import app
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from student.train import train
from tests.helpers.formats import FOLDER
from tests.helpers.rewritten_sets import Change, Row, rewritten
from tests.helpers.students import tiny_config

QUERY = "select source_row, variant, 1 + source_row as weight from opinion where argmax(logits) = label"


@pytest.fixture
def query_run(opinion_set: ExampleSet, tmp_path: Path) -> Path:
    """A run on rows that a query has chosen, from a set that may be changed."""
    shutil.copytree(opinion_set.root, tmp_path / "sets" / "opinion")
    train(tiny_config(tmp_path / "sets" / "opinion", tmp_path / "run", query=QUERY, num_train_epochs=1), "")
    return tmp_path / "run"


def reproduce(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def compared(run: Path, *flags: object) -> tuple[int, dict[str, Any]]:
    """Exit code, and of everything that is not the same what was and what is."""
    result = reproduce(run, *flags, "--json")
    values = json.loads(result.stdout)
    changed = {name: v for name, v in values["compared"].items() if v["then"] != v["now"]}
    assert values["same"] == (not changed)
    return result.exit_code, changed


def replace_set(run: Path, change: Change) -> ExampleSet:
    """Puts another set in the place of the run's."""
    root = run.parent / "sets" / "opinion"
    old = root.rename(run.parent / "old")
    return rewritten(ExampleSet.open(old), root, change)


def test_an_unchanged_run_is_reproduced(query_run: Path, opinion_run: Path) -> None:
    assert compared(query_run) == (0, {})
    table = reproduce(opinion_run)
    assert table.exit_code == 0
    assert all(name in table.stdout for name in ("fingerprint of opinion", "rows", "logits_sha256", "True"))


def test_other_logits_are_found_though_the_rows_are_the_same(query_run: Path) -> None:
    def shifted(_: str, rows: list[Row]) -> list[Row]:
        return [row | {"logits": [x + 1 for x in row["logits"]]} for row in rows]  # as sure of itself as before

    replace_set(query_run, shifted)
    code, changed = compared(query_run)
    assert (code, set(changed)) == (1, {"fingerprint of opinion", "logits_sha256"})


def test_other_rows_are_found_and_counted(query_run: Path) -> None:
    then = read_record(query_run / "run.json")["settings"]["rows"]
    changed_set = replace_set(query_run, lambda _, rows: [row | {"logits": [1.0, 0.0]} for row in rows])
    now = changed_set.read("train", ("label",), "label = 0").num_rows  # the new teacher always predicts the first class
    code, changed = compared(query_run)
    assert then != now
    assert (code, changed["rows"]) == (1, {"then": then, "now": now})
    result = reproduce(query_run)
    assert "4 of 4: fingerprint of opinion, rows, rows_sha256, logits_sha256" in result.stderr


def test_sets_are_looked_for_by_name_elsewhere(query_run: Path) -> None:
    (query_run.parent / "sets").rename(query_run.parent / "moved")
    gone = reproduce(query_run)
    assert gone.exit_code == 2
    assert "sets/opinion'" in gone.stderr
    assert compared(query_run, "--store", query_run.parent / "moved") == (0, {})


def test_what_cannot_be_compared_is_an_error(query_run: Path, opinion_set: ExampleSet) -> None:
    path = query_run / "run.json"
    record = read_record(path)
    path.write_text(json.dumps(record | {"settings": record["settings"] | {"query": "select nothing from opinion"}}))
    assert reproduce(query_run).exit_code == 2
    missing = reproduce(query_run.parent)
    assert (missing.exit_code, str(query_run.parent) in missing.stderr) == (2, True)


def test_a_pretraining_run_is_refused_also_before_it_has_weights(tmp_path: Path) -> None:
    run = FOLDER / "run-pretrained"
    shutil.copy(run / "run.json", tmp_path)
    for folder in (run, tmp_path):
        result = reproduce(folder)
        assert result.exit_code == 2
        assert f"{folder}: " in result.stderr
