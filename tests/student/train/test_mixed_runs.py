import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError, DataError, FingerprintMismatchError
from pipeline.query.mixture import open_sets
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.rows import logits_of
from pipeline.settings import given
from pipeline.tasks.metrics import fidelity
from student.data import load_examples
from student.evaluate import evaluate
from student.export.export import export
from student.lessons.examples import student_logits
from student.model.student import Student
from student.run_settings import EvaluateSettings, ExportSettings
from student.settings import SweepSettings, TrainSettings
from student.sweep.sweep import sweep
from student.train import train
from tests.helpers.messages import naming
from tests.helpers.rewritten_sets import rewritten, with_logits
from tests.helpers.students import tiny_config, weights

MIX = "weighted:1,3"


@pytest.fixture(scope="module")
def other(opinion_set: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> ExampleSet:
    """The rows of `opinion_set`, but for the last three of each split, of a teacher that is sure of itself."""
    sure = with_logits(lambda row: [4.0, -1.0] if row % 3 else [-2.0, 2.0])
    root = tmp_path_factory.mktemp("sets") / "other"
    return rewritten(opinion_set, root, lambda split, rows: sure(split, rows[:-3]))


def mixed_config(opinion_set: ExampleSet, other: ExampleSet, run: Path, **changes: object) -> TrainSettings:
    return tiny_config(opinion_set.root, run, set=(str(opinion_set.root), str(other.root)), **changes)


@pytest.fixture(scope="module")
def mixed_run(opinion_set: ExampleSet, other: ExampleSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on both; read only."""
    folder = tmp_path_factory.mktemp("mixed_run")
    train(mixed_config(opinion_set, other, folder, mix=MIX), "distill train-student")
    return folder


def record_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "run.json").read_text()))


def test_the_record_tells_sets_query_and_how_the_teachers_differ(
    mixed_run: Path, opinion_set: ExampleSet, other: ExampleSet
) -> None:
    record = record_of(mixed_run)
    settings, teachers = record["settings"], record["result"]["teachers"]
    assert record["logit_sets"] == [str(opinion_set.root), str(other.root)]
    assert settings["logit_set_fingerprints"] == [opinion_set.record.fingerprint, other.record.fingerprint]
    assert (settings["mix"], settings["rows"]) == (MIX, 93)
    assert 'mix(["opinion".logits, "other".logits], [0.25, 0.75])' in settings["query"]
    assert teachers["train"]["left_out"] == {"opinion": 3, "other": 0}
    assert set(teachers["validation"]["scores"]) == {"opinion", "other", "mixture"}
    card = (mixed_run / "README.md").read_text()
    assert all(fingerprint in card for fingerprint in settings["logit_set_fingerprints"])


def test_the_recorded_query_is_a_query(
    mixed_run: Path, opinion_set: ExampleSet, other: ExampleSet, tmp_path: Path
) -> None:
    query = record_of(mixed_run)["settings"]["query"]
    again = train(mixed_config(opinion_set, other, tmp_path / "again", query=query), "")
    for name in ("rows", "rows_sha256", "logits_sha256"):
        assert again["settings"][name] == record_of(mixed_run)["settings"][name]
    store = tmp_path / "store"
    for one in (opinion_set, other):
        shutil.copytree(one.root, store / one.name)
    result = CliRunner().invoke(app, ["sql", query, "--store", str(store), "--json"])
    mixed = open_sets([opinion_set.root, other.root], MIX)
    expected = mixed.read("train", ("logits",)).column("logits").to_pylist()
    assert [row["logits"] for row in json.loads(result.stdout)] == expected


def test_the_mean_is_the_default_and_the_mix_reaches_the_weights(
    mixed_run: Path, opinion_set: ExampleSet, other: ExampleSet, tmp_path: Path
) -> None:
    for name, mix in {"default": None, "mean": "mean", "vote": "vote"}.items():
        train(mixed_config(opinion_set, other, tmp_path / name, mix=mix), "")
    default, mean, mixed = (weights(run) for run in (tmp_path / "default", tmp_path / "mean", mixed_run))
    assert all(torch.equal(default[name], mean[name]) for name in default)
    assert not all(torch.equal(default[name], mixed[name]) for name in default)
    with pytest.raises(FingerprintMismatchError, match=naming("mix: vote", "mean")):
        train(mixed_config(opinion_set, other, tmp_path / "vote"), "")


def test_a_mixed_run_is_evaluated_against_its_mixture(
    mixed_run: Path, opinion_set: ExampleSet, other: ExampleSet
) -> None:
    parts = evaluate(EvaluateSettings(run=mixed_run, store=opinion_set.root.parent))
    assert parts["validation"]["rows"].pop("not_in_the_set") == 3  # rows that only one of the teachers has
    assert parts == record_of(mixed_run)["result"]["evaluation"]
    mixed = load_examples(open_sets([opinion_set.root, other.root], MIX), "validation")
    student = Student.load(mixed_run)
    expected = fidelity(student.config.target, student_logits(student, mixed), mixed.teacher_NC)
    assert parts["validation"]["fidelity"] == pytest.approx(expected)
    right = (mixed.teacher_NC.argmax(axis=1) == mixed.label_N).mean()
    assert parts["validation"]["teacher"]["accuracy"] == pytest.approx(right)
    alone = evaluate(EvaluateSettings(run=mixed_run, set="opinion", store=opinion_set.root.parent))
    assert alone["validation"]["fidelity"] != parts["validation"]["fidelity"]


def test_a_mixed_run_is_measured_when_it_is_exported(mixed_run: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    config = ExportSettings(
        run=mixed_run, output_dir=tmp_path / "small", tables="float16", store=opinion_set.root.parent
    )
    before = record_of(mixed_run)["result"]["evaluation"]["validation"]["gold"]["accuracy"]
    assert export(config)["scores"]["validation"]["accuracy"]["before"] == before


def test_a_query_is_measured_against_the_mean_of_the_sets(
    opinion_set: ExampleSet, other: ExampleSet, tmp_path: Path
) -> None:
    query = "select source_row, variant, logits from other where source_row < 40"
    record = train(mixed_config(opinion_set, other, tmp_path / "query", query=query), "")
    assert (record["settings"]["query"], record["settings"]["rows"], record["settings"]["mix"]) == (query, 40, "mean")
    examples = load_examples(open_sets([opinion_set.root, other.root], "mean"), "validation")
    right = (examples.teacher_NC.argmax(axis=1) == examples.label_N).mean()
    assert record["result"]["evaluation"]["validation"]["teacher"]["accuracy"] == pytest.approx(right)


def test_where_and_query_choose_the_same_student(opinion_set: ExampleSet, tmp_path: Path) -> None:
    train(tiny_config(opinion_set.root, tmp_path / "where", where="argmax(logits) = label"), "")
    query = "select source_row, variant from opinion where argmax(logits) = label"
    train(tiny_config(opinion_set.root, tmp_path / "query", query=query), "")
    one, two = weights(tmp_path / "where"), weights(tmp_path / "query")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert 0 < record_of(tmp_path / "query")["settings"]["rows"] < 96


@pytest.mark.slow
def test_a_sweep_over_several_teachers(
    mixed_run: Path, opinion_set: ExampleSet, other: ExampleSet, tmp_path: Path
) -> None:
    base = given(mixed_config(opinion_set, other, tmp_path / "sweep", mix=MIX))
    config = SweepSettings.from_flags(**base | {"grid": ("alpha=0.5,1.0",)})
    sweep(config, "")
    swept = record_of(tmp_path / "sweep" / "alpha=0.5,seed=42")
    alone = record_of(mixed_run)
    assert (swept["settings"], swept["result"]) == (alone["settings"], alone["result"])
    assert f"--set {opinion_set.root} --set {other.root}" in swept["command"]
    settings = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["settings"]
    assert settings["logit_set_fingerprints"] == alone["settings"]["logit_set_fingerprints"]
    for change in ({"mix": "vote"}, {"mix": None, "query": "select source_row, variant from other"}):
        with pytest.raises(FingerprintMismatchError, match=naming("mix: weighted:1,3")):
            sweep(SweepSettings.from_flags(**base | {"grid": ("alpha=0.5,1.0",)} | change), "")


def test_scores_are_averaged_and_have_no_vote(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    score = ratings["score"]
    three = rewritten(score, tmp_path / "three", with_logits(lambda _: [3.0]))
    own = logits_of(score.read("train", ("logits",)), 1)[:, 0]
    mixed = open_sets([score.root, three.root], "weighted:3,1")
    assert logits_of(mixed.read("train", ("logits",)), 1)[:, 0] == pytest.approx(0.75 * own + 0.75, abs=1e-5)
    with pytest.raises(ConfigError, match=naming("--mix vote: ", "score")):
        open_sets([score.root, three.root], "vote")
    with pytest.raises(ConfigError, match=naming("--set: ", "store/bins: ", "1 to 6", "store/score")):
        open_sets([score.root, ratings["bins"].root])
    record = train(tiny_config(score.root, tmp_path / "run", set=(str(score.root), str(three.root))), "")
    values = record["result"]["teachers"]["train"]["with_first"]["three"]
    assert values["rmse"] == pytest.approx(np.sqrt(((own - 3) ** 2).mean()), rel=1e-5)


def test_flags_that_contradict_each_other_are_all_told(opinion_set: ExampleSet, tmp_path: Path) -> None:
    flags = {"query": "select 1", "where": "true", "mix": "vote"}
    with pytest.raises(ConfigError, match=naming("2 problems", "--where or --query", "--mix: ")):
        tiny_config(opinion_set.root, tmp_path / "run", **flags)


def test_a_condition_is_on_the_mixed_rows(opinion_set: ExampleSet, augmented_set: ExampleSet, tmp_path: Path) -> None:
    sets = (str(augmented_set.root), str(opinion_set.root))  # the second one has no variants
    with pytest.raises(DataError, match=naming("opinion-mask-pos: ", "'train'", "--where 'variant > 0'")):
        train(tiny_config(opinion_set.root, tmp_path / "run", set=sets, where="variant > 0"), "")


def test_the_command_tells_how_the_teachers_differ(opinion_set: ExampleSet, other: ExampleSet, tmp_path: Path) -> None:
    sets = ["--set", str(opinion_set.root), "--set", str(other.root), "--mix", "vote"]
    sizes = ["--matrix-size", "2", "--vector-size", "2", "--hidden-size", "2", "--num-train-epochs", "1"]
    result = CliRunner().invoke(app, ["train-student", *sets, *sizes, "--output-dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    for expected in ("train: 93 rows", "3 of opinion", "validation, mixture: accuracy"):
        assert expected in result.stderr
    wrong = CliRunner().invoke(app, ["train-student", *sets[:2], "--query", "drop table x"])
    assert (wrong.exit_code, "DROP" in wrong.stderr) == (2, True)
