"""``distill sweep --experiment`` on the tiny tasks: every step a process of its own, forked but in one test."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

from distill.apps.experiments import measure
from pipeline.errors import short
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from teacher.models.loaded import weights_sha256
from tests.helpers.commands import distill, invoke, kill_when
from tests.helpers.forked_steps import fork_all_steps, fork_steps

pytestmark = pytest.mark.slow
SIZES = "matrix_size: 3, vector_size: 5, hidden_size: 8, num_train_epochs: 2, learning_rate: 0.01"
EXPERIMENT = f"""
teacher: {{num_train_epochs: 1, learning_rate: 1.0e-3, max_seq_length: 32}}
sets: {{default: {{max_seq_length: 32}}}}
students:
  small: {{{SIZES}, held_out: 0.25}}
  gold alone: {{{SIZES}, alpha: 1}}
"""
Whole = tuple[list[object], Path, dict[str, Any]]
BASELINES = ["majority", "TF-IDF", "hashed bigrams", "n-grams", "n-grams + teacher", "model2vec", "model2vec, tuned"]
SYSTEMS = [*BASELINES, "small", "gold alone", "teacher"]


def flags(work: Path, folder: Path, *more: object, experiment: str = EXPERIMENT) -> list[object]:
    (folder / "experiment.yaml").write_text(experiment)
    places = ["--data", work / "data", "--experiment", folder / "experiment.yaml", "--output-dir", folder / "out"]
    return ["sweep", "--manifest", work / "opinion.yaml", *places, "--json", *more]


def files(folder: Path) -> dict[str, int]:
    """When each file was written, but for the tables."""
    tables = {"RESULTS.md", "results.json"}
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in tables]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths}


def make_quick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(measure, "TURN_S", 0.002)
    fork_steps(patch)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@pytest.fixture(scope="module")
def whole(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The arguments of a comparison with two teachers and two seeds, its folder, and what it told."""
    folder = tmp_path_factory.mktemp("results")
    arguments = flags(work, folder, "--model-name-or-path", work / "bert", "--teacher-seeds", 2, "--seeds", 2)
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return arguments, folder / "out", json.loads(result.stdout)["tasks"]["opinion"]


def test_every_system_is_in_the_table(whole: Whole) -> None:
    _, folder, told = whole
    assert list(told["systems"]) == SYSTEMS
    assert json.loads((folder / "results.json").read_text())["tasks"]["opinion"] == told
    text = (folder / "RESULTS.md").read_text()
    for name, cell in told["systems"].items():
        assert f"\n| {name} |" in text or "left_out" in cell
        assert "failed" not in cell
        assert cell.get("kind") not in ("student", "teacher") or cell["sentences_per_second"] > 0
    assert told["systems"]["small"]["times_default"] > 0
    assert told["systems"]["small"]["set_bytes"] == ExampleSet.open(folder / "logits" / "opinion").record.num_bytes


def test_scores_are_those_of_the_commands(whole: Whole) -> None:
    _, folder, told = whole
    for name, file_name in (("small", "small"), ("gold alone", "gold-alone")):
        for seed, scored in zip((42, 43), told["systems"][name]["splits"]["validation"], strict=True):
            run = read_work_record(folder / "runs" / "opinion" / f"{file_name}-{seed}" / "run.json")
            evaluation = run["result"]["evaluation"]["validation"]
            assert scored["scores"] == evaluation["gold"]
            assert scored["intervals"] == evaluation["interval"]
            assert scored["fidelity"] == evaluation["fidelity"]["agreement"]
    [teacher] = told["systems"]["teacher"]["splits"]["validation"]
    assert teacher["scores"] == ExampleSet.open(folder / "logits" / "opinion").record.scores["validation"]
    assert teacher["fidelity"] == 1


def test_systems_are_compared_on_rows_from_which_they_did_not_learn(whole: Whole) -> None:
    _, folder, told = whole
    run = read_work_record(folder / "runs" / "opinion" / "small-42" / "run.json")["result"]
    held_out = told["systems"]["small"]["splits"]["held-out"]
    assert held_out[0]["scores"] == run["best"]["metrics"]["held-out"]
    assert told["slices"]["split"] in ("held-out", "validation")
    apart = told["systems"]["teacher"]["differences"]["held-out"]
    assert apart["fidelity"]["mean"] == pytest.approx(1 - np.mean([seed["fidelity"] for seed in held_out]))
    assert "differences" not in told["systems"]["small"]
    assert told["systems"]["gold alone"]["splits"].keys() == {"validation"}
    assert told["systems"]["n-grams + teacher"]["splits"].keys() == {"validation", "held-out"}


def test_the_teacher_is_the_best_on_held_out_rows(whole: Whole) -> None:
    _, folder, told = whole
    held_out = {seed: metrics["held-out"]["accuracy"] for seed, metrics in told["teacher"]["seeds"].items()}
    assert list(held_out) == ["42", "43"]
    best = max(held_out, key=held_out.__getitem__)
    assert told["teacher"]["folder"] == str(folder / "teachers" / "opinion" / best)
    assert ExampleSet.open(folder / "logits" / "opinion").record.teacher.name == told["teacher"]["folder"]


def test_the_second_time_computes_nothing(whole: Whole) -> None:
    arguments, folder, told = whole
    before, page = files(folder), (folder / "RESULTS.md").read_text()
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["tasks"]["opinion"] == told
    assert (folder / "RESULTS.md").read_text() == page
    assert files(folder) == before


def test_the_plan_is_what_was_run(whole: Whole) -> None:
    arguments, folder, told = whole
    result = invoke(*arguments, "--plan")
    assert json.loads(result.stdout) == told["commands"]
    assert len(told["commands"]) == 2 + 1 + 2 * 2
    records = [json.loads(path.read_text()) for path in (folder / "cells" / "opinion").glob("*.json")]
    assert {record["command"] for record in records} - {""} == set(told["commands"])


def is_finished(record: Path) -> bool:
    return record.exists() and read_work_record(record)["state"] == "finished"


def test_killed_and_repeated_goes_on(work: Path, teachers: Path, tmp_path: Path) -> None:
    arguments = flags(work, tmp_path, "--teachers", teachers, "--seeds", 1)
    process = distill(*arguments)  # its steps start as those of users, and must end with it
    done = tmp_path / "out" / "cells" / "opinion" / "train-student-small-42.json"
    kill_when(process, lambda: is_finished(done))
    before = files(tmp_path / "out")
    assert "runs/opinion/gold-alone-42/model.safetensors" not in before
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    finished = {name: when for name, when in before.items() if "-small-42" in name or name.startswith("logits/")}
    assert finished.items() <= files(tmp_path / "out").items()
    told = json.loads(result.stdout)["tasks"]["opinion"]
    assert list(told["systems"]) == SYSTEMS
    assert told["teacher"] == {"folder": str(teachers / "opinion"), "seeds": {}}
    assert told["systems"]["model2vec"]["left_out"]


def test_a_teacher_starts_from_another_tasks_teacher_and_goes_on_when_killed(
    work: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_pairs(work, tmp_path / "data")
    settings = "num_train_epochs: 1, max_seq_length: 32"
    experiment = f"""
sets: {{default: {{max_seq_length: 32}}}}
students: {{small: {{{SIZES}, held_out: 0.25}}}}
teacher: {{{settings}}}
tasks: {{rte: {{teacher: {{from: mnli, learning_rate: 1.0e-3}}}}}}
"""
    (tmp_path / "experiment.yaml").write_text(experiment)
    out = tmp_path / "out"
    places = ["--data", tmp_path / "data", "--experiment", tmp_path / "experiment.yaml", "--output-dir", out]
    arguments = ["sweep", "--tasks", "rte", "--model-name-or-path", work / "bert", "--seeds", 1, *places, "--json"]
    process = distill(*arguments, first=fork_all_steps)
    kill_when(process, lambda: is_finished(out / "cells" / "mnli" / "finetune-teacher-42.json"))
    before = {name: when for name, when in files(out).items() if "/mnli/" in name}
    assert "teachers/mnli/42/model.safetensors" in before
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert {name: when for name, when in files(out).items() if "/mnli/" in name} == before
    told = json.loads(result.stdout)["tasks"]["rte"]
    start, folder = out / "teachers" / "mnli" / "42", out / "teachers" / "rte" / "42"
    assert (told["teacher"]["folder"], told["teacher"]["from"]) == (str(folder), str(start))
    assert f"Teacher `{folder}`, fine-tuned from `{start}`, by held-out" in (out / "RESULTS.md").read_text()
    rte, mnli = (read_work_record(place / "finetune.json")["settings"] for place in (folder, start))
    assert rte["encoder"] == encoder_sha256(start) != mnli["encoder"] == encoder_sha256(work / "bert")
    assert (rte["learning_rate"], mnli["learning_rate"]) == (1e-3, 5e-5)

    (tmp_path / "experiment.yaml").write_text(experiment.replace("from: mnli", "from: null"))
    capfd.readouterr()
    assert invoke(*arguments).exit_code == 1
    error = capfd.readouterr().err
    assert all(part in error for part in (f"{folder} ", f"encoder: {short(rte['encoder'])} there"))


def write_pairs(work: Path, data: Path) -> None:
    """RTE and MNLI of the words of the tiny BERT, in the folder."""
    for task, num_labels, validation in (("rte", 2, "validation"), ("mnli", 3, "validation_matched")):
        (data / task).mkdir(parents=True)
        for split, name in (("train", "train"), ("validation", validation)):
            lines = (work / "data" / "roles" / f"{split}.jsonl").read_text().splitlines()
            rows = [json.loads(line) | {"label": number % num_labels} for number, line in enumerate(lines)]
            (data / task / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def encoder_sha256(folder: Path) -> str:
    """Hash of the weights below the head of a classifier."""
    return weights_sha256(AutoModelForSequenceClassification.from_pretrained(folder).base_model)


def test_what_fails_leaves_the_other_systems(work: Path, teachers: Path, tmp_path: Path) -> None:
    experiment = f"""
sets: {{good: {{max_seq_length: 32}}, bad: {{teacher_labels: "no,label"}}}}
students: {{good: {{{SIZES}, held_out: 0.25}}, no rows: {{where: label = 7}}, no set: {{set: bad}}}}
"""
    result = invoke(*flags(work, tmp_path, "--teachers", teachers, "--seeds", 1, experiment=experiment))
    assert result.exit_code == 1
    assert "opinion" in result.stderr
    told = json.loads(result.stdout)["tasks"]["opinion"]
    failed = {name: cell["failed"] for name, cell in told["systems"].items() if "failed" in cell}
    assert failed == dict.fromkeys(("no rows", "no set"), "its training failed")
    assert told["systems"]["good"]["splits"]
    assert list(told["sets"]) == ["good"]


def test_a_task_without_training_rows_is_told_of(work: Path, teachers: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = work / "data" / "opinion" / "validation.jsonl"
    (tmp_path / "data" / "validation.jsonl").write_bytes(rows.read_bytes())
    result = invoke(*flags(work, tmp_path, "--teachers", teachers), "--data", tmp_path / "data")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)["tasks"]["opinion"]
    assert (told["absent"], told["systems"]) == (["train"], {})
    assert "Not compared" in (tmp_path / "out" / "RESULTS.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "mrcp", "--teachers", "x"], "--tasks: "),
        (["--manifest", "OWN"], "--model-name-or-path ENCODER"),
        (["--tasks", "mrpc", "--alpha", "1"], "--alpha: does not go with --experiment"),
        (["--tasks", "mrpc", "--experiment", "gleu"], "'glue'"),
        (["--tasks", "mrpc,mrpc", "--teachers", "x"], "mrpc"),
        (["--teachers", "x", "--data", "EMPTY"], "--tasks"),
        (["--tasks", "mrpc", "--teachers", "x", "--data", "EMPTY"], "'mrpc'"),
    ],
)
def test_mistakes_are_told_at_once(arguments: list[str], message: str, work: Path, tmp_path: Path) -> None:
    (tmp_path / "EMPTY").mkdir()
    places = {"EMPTY": str(tmp_path / "EMPTY"), "OWN": str(work / "opinion.yaml")}
    placed = [places.get(word, word) for word in arguments]
    result = invoke("sweep", "--experiment", "glue", *placed, "--output-dir", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_lost_outputs_are_computed_again(whole: Whole) -> None:
    # The last one: what is measured again has other times.
    arguments, folder, told = whole
    (folder / "cells" / "opinion" / "baseline-n-grams.npz").unlink()
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    again = json.loads(result.stdout)["tasks"]["opinion"]["systems"]["n-grams"]
    assert again["differences"] == told["systems"]["n-grams"]["differences"]
