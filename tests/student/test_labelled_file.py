"""``evaluate --data``: a file of a split's rows has the scores of that split; what is wrong with a file is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_record, write_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.training.run_record import STUDENTS
from student.data import load_examples
from student.evaluate import evaluate, evaluate_file
from student.lessons.examples import student_logits
from student.model.student import Student
from student.run_settings import EvaluateSettings
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.messages import naming
from tests.helpers.row_formats import WRITERS
from tests.helpers.students import tiny_config

WITHOUT_TEACHER: dict[str, dict[str, object]] = {"teacher": {}, "teacher_by_label": {}, "fidelity": {}}


def of_file(run: Path, file: Path, **flags: object) -> dict[str, Any]:
    """The evaluation of a file, which is the only split."""
    (parts,) = evaluate_file(EvaluateSettings.from_flags(run=run, data=file, **flags))[0].values()
    return dict(parts)


def of_split(run: Path) -> dict[str, Any]:
    """The evaluation of the run's dev split, without what a file does not have."""
    return evaluate(EvaluateSettings.from_flags(run=run))["validation"] | WITHOUT_TEACHER


def rows_of(split: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in split.read_text().splitlines()]


@pytest.fixture
def renamed(work: Path, tmp_path: Path) -> Path:
    """The dev split of the single-sentence task, with a user's names of columns and the names of its labels."""
    rows = rows_of(work / "data/opinion/validation.jsonl")
    file = tmp_path / "june.jsonl"
    names = ["bad", "good"]
    changed = [{"message": row["sentence1"], "mood": names[row["label"]], "day": k} for k, row in enumerate(rows)]
    file.write_text("".join(json.dumps(row) + "\n" for row in changed))
    return file


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl", ".json"])
def test_a_file_has_the_scores_of_the_split_with_its_rows(
    work: Path, opinion_run: Path, tmp_path: Path, ending: str
) -> None:
    rows = pa.Table.from_pylist(rows_of(work / "data/opinion/validation.jsonl"))
    (tmp_path / f"june{ending}").write_bytes(WRITERS[ending](rows))
    assert of_file(opinion_run, tmp_path / f"june{ending}") == of_split(opinion_run)


def test_pairs_and_scores_are_evaluated_by_the_columns_that_the_run_recorded(
    work: Path, roles_run: Path, ratings_run: Path, ratings: dict[str, ExampleSet], tmp_path: Path
) -> None:
    assert of_file(roles_run, work / "data/roles/validation.jsonl") == of_split(roles_run)
    scores = ratings["score"].root.parents[1] / "validation.jsonl"
    assert of_file(ratings_run, scores) == of_split(ratings_run)
    train(tiny_config(ratings["bins"].root, tmp_path / "bins", num_train_epochs=1), "")
    assert of_file(tmp_path / "bins", scores) == of_split(tmp_path / "bins")


def test_columns_are_named_by_flags_or_by_a_manifest(
    work: Path, opinion_run: Path, renamed: Path, tmp_path: Path
) -> None:
    expected = of_split(opinion_run)
    assert of_file(opinion_run, renamed, text="message", label="mood") == expected
    text = (work / "opinion.yaml").read_text()
    changed = text.replace("sentence1: sentence1", "sentence1: message").replace("label: label", "label: mood")
    assert changed != text
    (tmp_path / "own.yaml").write_text(changed)
    assert of_file(opinion_run, renamed, manifest=tmp_path / "own.yaml") == expected


def test_the_run_remembers_its_tasks_names_of_columns(opinion_run: Path, renamed: Path, tmp_path: Path) -> None:
    run = shutil.copytree(opinion_run, tmp_path / "run")
    record = read_record(run / RUN_RECORD)
    assert record["label_columns"] == ["label"]
    write_record(run / RUN_RECORD, record | {"text_columns": [["message"]], "label_columns": ["mood"]})
    assert of_file(run, renamed) == of_split(opinion_run)


def test_the_matrix_counts_rows_by_gold_and_predicted_label(opinion_run: Path, opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    predicted_N = student_logits(Student.load(opinion_run), examples).argmax(axis=1)
    matrix = of_split(opinion_run)["confusion"]
    for gold, row in enumerate(("bad", "good")):
        for label, column in enumerate(("bad", "good")):
            count = np.sum((examples.label_N == gold) & (predicted_N == label))
            assert matrix.get(row, {}).get(column, 0) == count
    assert sum(sum(row.values()) for row in matrix.values()) == len(examples)


def test_the_command_prints_the_same_as_json_and_the_matrix_as_a_table(opinion_run: Path, renamed: Path) -> None:
    columns = ["--text", "message", "--label", "mood"]
    done = invoke("evaluate", str(opinion_run), "--data", str(renamed), *columns, "--json")
    assert done.exit_code == 0, done.stderr
    (printed,) = json.loads(done.stdout).values()
    expected = of_file(opinion_run, renamed, text="message", label="mood")
    assert printed == expected | {"judgements": printed["judgements"]}
    shown = invoke("evaluate", str(opinion_run), "--data", str(renamed), *columns)
    assert shown.exit_code == 0, shown.stderr
    assert "also" not in shown.stdout  # a table without rows
    assert {"accuracy", "june.jsonl", "good", "bad"} <= {*shown.stdout.replace("│", " ").replace(":", " ").split()}


def test_a_missing_column_is_named_with_its_flag(opinion_run: Path, renamed: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--text", "--label", "message", "mood")):
        of_file(opinion_run, renamed)
    with pytest.raises(ConfigError, match=naming("--label mod", "'mood'")):
        of_file(opinion_run, renamed, text="message", label="mod")
    with pytest.raises(ConfigError, match=naming("--text2")):
        of_file(opinion_run, renamed, text="message", text2="day", label="mood")
    with pytest.raises(ConfigError, match=naming("--label", "message")):
        of_file(opinion_run, renamed, text="message", label="message")


def test_an_unknown_label_is_named_with_its_row_and_the_label_it_resembles(opinion_run: Path, renamed: Path) -> None:
    lines = renamed.read_text().splitlines()
    lines[7] = json.dumps(json.loads(lines[7]) | {"mood": "goood"})
    renamed.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=naming(str(renamed), "'goood'", "row 7", "'good'")):
        of_file(opinion_run, renamed, text="message", label="mood")


def test_rows_without_gold_are_left_out_and_a_file_without_any_is_refused(opinion_run: Path, renamed: Path) -> None:
    rows = rows_of(renamed)
    renamed.write_text(
        "".join(json.dumps(row | {"mood": row["mood"] if k < 5 else None}) + "\n" for k, row in enumerate(rows))
    )
    parts = of_file(opinion_run, renamed, text="message", label="mood")
    assert sum(sum(row.values()) for row in parts["confusion"].values()) == 5
    renamed.write_text("".join(json.dumps(row | {"mood": None}) + "\n" for row in rows))
    with pytest.raises(DataError, match=naming(str(renamed))):
        of_file(opinion_run, renamed, text="message", label="mood")


def test_flags_that_do_not_fit_are_refused(work: Path, opinion_run: Path, renamed: Path, tmp_path: Path) -> None:
    for flags in ({"text": "message"}, {"label": "mood"}, {"manifest": work / "opinion.yaml"}):
        with pytest.raises(ConfigError, match=naming("--data", f"--{next(iter(flags))}")):
            EvaluateSettings.from_flags(run=opinion_run, **flags)
    with pytest.raises(ConfigError, match=naming("--data", "--set")):
        EvaluateSettings.from_flags(run=opinion_run, data=renamed, set="opinion")
    other = tmp_path / "other.yaml"
    other.write_text((work / "opinion.yaml").read_text().replace("good", "fine"))
    with pytest.raises(ConfigError, match=naming("--manifest", other, "fine", "good")):
        of_file(opinion_run, renamed, manifest=other)
    with pytest.raises(DataError, match=naming(tmp_path / "none.csv")):
        of_file(opinion_run, tmp_path / "none.csv")


def test_a_run_of_several_tasks_names_the_folders_of_its_students(
    opinion_run: Path, renamed: Path, tmp_path: Path
) -> None:
    record = read_record(opinion_run / RUN_RECORD)
    (tmp_path / "joint").mkdir()
    write_record(tmp_path / "joint" / RUN_RECORD, record | {STUDENTS: ["opinion", "roles"]})
    with pytest.raises(ConfigError, match=naming("--data", tmp_path / "joint" / "roles")):
        of_file(tmp_path / "joint", renamed)


def test_a_teacher_is_scored_on_the_file(work: Path, teachers: Path, opinion_run: Path) -> None:
    flags = ("--data", work / "data/opinion/validation.jsonl", "--teacher", teachers / "opinion", "--json")
    (parts,) = json.loads(invoke("evaluate", opinion_run, *flags).stdout).values()
    known = evaluate(EvaluateSettings.from_flags(run=opinion_run))["validation"]
    assert {name: parts[name] for name in ("teacher", "teacher_by_label")} == {
        name: known[name] for name in ("teacher", "teacher_by_label")
    }
    assert parts["fidelity"] == pytest.approx(known["fidelity"], abs=1e-5)


def test_a_teacher_of_another_task_or_without_a_file_is_refused(work: Path, teachers: Path, opinion_run: Path) -> None:
    file = ("--data", work / "data/opinion/validation.jsonl")
    for flags, words in (
        ((*file, "--teacher", teachers / "roles"), ("roles", "different")),
        ((*file, "--teacher", teachers / "gone"), ("gone",)),
        (("--teacher", teachers / "opinion"), ("--teacher", "--data")),
    ):
        result = invoke("evaluate", opinion_run, *flags)
        assert result.exit_code == 2
        assert [word for word in words if word not in result.stderr] == []
