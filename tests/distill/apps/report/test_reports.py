import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from distill.apps.app_settings import ReportSettings
from distill.apps.report.comparison_pages import sweep_page
from distill.apps.report.page import Page, Rows, render
from distill.apps.report.predictions import Predictions, handed_on
from distill.apps.report.run_page import certificate_sections, run_page
from pipeline.console import size
from pipeline.errors import IntegrityError
from pipeline.record_file import read_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.signals.rows import logits_of
from pipeline.settings import given
from student.data import load_examples
from student.lessons.examples import student_logits
from student.model.student import Student, num_parameters
from student.predict.certificate import Certificate, Trial, model_hashes, write_certificate
from student.pretrain import pretrain
from student.pretrain_settings import PretrainSettings
from student.settings import SweepSettings, TrainSettings
from student.sweep.sweep import sweep
from student.train import train
from teacher.dumps import dump
from tests.helpers.dumps import dump_config
from tests.helpers.messages import naming
from tests.helpers.report_pages import Parsed, needs_nothing_else
from tests.helpers.students import tiny_config


def config_for(run: Path, store: Path) -> ReportSettings:
    return ReportSettings(set_or_run=str(run), store=store)


def figures_of(page: Page) -> dict[tuple[str, str], Rows]:
    return {(figure["section"], figure["title"]): figure["rows"] for figure in page.figures()}


@pytest.fixture(scope="module")
def opinion_page(opinion_run: Path, store: Path) -> Page:
    return run_page(config_for(opinion_run, store), opinion_run)


def test_a_run_is_compared_with_gold_and_with_its_teacher(
    opinion_page: Page, opinion_run: Path, opinion_set: ExampleSet
) -> None:
    student = Student.load(opinion_run)
    examples = load_examples(opinion_set, "validation")
    said_N, teacher_N = student_logits(student, examples).argmax(axis=1), examples.teacher_NC.argmax(axis=1)
    gold_N, names = examples.label_N, opinion_set.record.target.names
    figures = figures_of(opinion_page)
    for title, a_N, a in (
        ("Confusion of the student", gold_N, "gold"),
        ("Student against teacher", teacher_N, "teacher"),
    ):
        counts = {(row[a], row["student"]): row["n"] for row in figures["Split validation", title]}
        expected = {(names[g], names[s]): int(((a_N == g) & (said_N == s)).sum()) for g in (0, 1) for s in (0, 1)}
        assert counts == {key: n for key, n in expected.items() if n}
    reliability = figures["Split validation", "Reliability of the student"]
    assert sum(row["n"] * row["accuracy"] for row in reliability) == pytest.approx((said_N == gold_N).sum())
    fails = Parsed(render(opinion_page)).tables["The student fails, the teacher does not"][1:]
    wrong = ((said_N != gold_N) & (teacher_N == gold_N)).nonzero()[0]
    assert {int(row[0]) for row in fails} <= set(wrong.tolist())
    assert len(fails) == min(8, len(wrong))


def test_a_runs_scores_are_those_of_its_record(opinion_page: Page, opinion_run: Path) -> None:
    record = read_record(opinion_run / "run.json")
    assert opinion_page.sections[0].facts["weights on disk"] == size(record["result"]["size"]["bytes"])
    parts = record["result"]["evaluation"]["validation"]
    student, *others = [f"{parts[whose]['accuracy']:.4f}" for whose in ("gold", "teacher", "majority")]
    interval = "{:.3f} to {:.3f}".format(*parts["interval"]["accuracy"])
    tables = Parsed(render(opinion_page)).tables
    ((*scores, baseline),) = tables["Against gold"][1:]  # the record has no baseline
    assert scores == ["validation", "accuracy", student, interval, *others]
    assert 0 < float(baseline) <= 1
    curves = figures_of(opinion_page)
    together = curves["Split validation", "Student and teacher together"]
    assert [together[k]["accuracy"] for k in (0, -1)] == [
        pytest.approx(parts[whose]["accuracy"]) for whose in ("gold", "teacher")
    ]
    assert curves["Training", "Loss"] == [{"epoch": e["epoch"], "loss": e["loss"]} for e in record["result"]["history"]]
    expected = [e["metrics"]["validation"]["accuracy"] for e in record["result"]["history"]]
    assert [row["validation accuracy"] for row in curves["Training", "Scores"]] == expected


def test_the_surest_rows_are_the_last_that_the_teacher_is_asked(opinion_set: ExampleSet) -> None:
    examples = load_examples(opinion_set, "validation")
    num_rows = len(examples)
    margin_N = np.linspace(0.1, 3, num_rows)
    is_right_N = np.arange(num_rows) >= num_rows // 2  # the student is right where it is sure
    right_N = np.where(is_right_N, examples.label_N, 1 - examples.label_N)
    logits_NC = (np.eye(2)[right_N] * margin_N[:, None]).astype(np.float32)
    teacher_NC = np.eye(2, dtype=np.float32)[examples.label_N]  # is always right
    target, gold = opinion_set.record.target, (examples.label_N, examples.score_N)
    student, teacher = (Predictions("", target, NC, *gold) for NC in (logits_NC, teacher_NC))
    accuracy = [row["accuracy"] for row in handed_on(teacher, student).rows]
    assert accuracy[0] == 0.5
    assert accuracy[25] == 0.75
    assert set(accuracy[50:]) == {1.0}


def test_a_certificate_is_drawn(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(opinion_run, tmp_path / "run"))
    trials = [
        Trial(percent=k, threshold=1 - k / 100, answered=k, disagreements=k // 20, bound=k / 100) for k in range(1, 101)
    ]
    certificate = Certificate(
        disagreement=0.1,
        confidence=0.95,
        certified=trials[9],
        trials=tuple(trials),
        num_rows=100,
        logit_set="a/set",
        logit_set_fingerprint="f",
        where="source_row % 7 = 0",
        rows_sha256="r",
        logits_sha256="l",
        student_sha256=model_hashes(run),
    )
    write_certificate(run, certificate)
    page = run_page(config_for(run, store), run)
    figures = figures_of(page)["Answers or abstains", "Risk against coverage"]
    assert [row["differ"] for row in figures] == [k // 20 / k for k in range(1, 101)]
    assert "source_row % 7 = 0" in render(page)
    shutil.copy(run / "config.json", run / "model.safetensors")
    assert certificate_sections(run)[0].text.startswith(f"{run}")
    assert certificate_sections(opinion_run) == []


def test_a_runs_page_is_whole_and_reproducible(opinion_page: Page, opinion_run: Path, store: Path) -> None:
    html = render(opinion_page)
    assert needs_nothing_else(html)
    assert render(run_page(config_for(opinion_run, store), opinion_run)) == html


@pytest.mark.parametrize("place", ["gone", "moved", "another set in its place"])
def test_without_its_set_the_page_says_so(place: str, opinion_run: Path, store: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(opinion_run, tmp_path / "run"))
    record = read_record(run / "run.json") | {"logit_sets": ["/gone/opinion"]}
    if place == "another set in its place":
        record["settings"]["logit_set_fingerprints"] = ["0" * 64]
    (run / "run.json").write_text(json.dumps(record))
    searched = tmp_path / "store" if place == "gone" else store
    page = run_page(config_for(run, searched), run)
    dev = "Split validation" if place == "moved" else "Dev splits"
    assert [section.title for section in page.sections] == ["What it is", "Training", "Scores", dev, "Settings"]
    if place == "gone":
        assert all(f"{folder}" in render(page) for folder in ("/gone/opinion", searched))


def test_a_run_without_dev_rows_has_a_page(work: Path, teachers: Path, tmp_path: Path) -> None:
    dump(dump_config(work, "opinion", tmp_path, splits="train"), "distill teacher-dump")
    flags = {"set": (str(tmp_path / "opinion"),), "output_dir": tmp_path / "run", "num_train_epochs": 1}
    train(TrainSettings.from_flags(**flags, embedding="cbow", vector_size=4, head="linear"), "distill train-student")
    assert "no dev splits" in render(run_page(config_for(tmp_path / "run", tmp_path), tmp_path / "run"))


def test_an_unfinished_run_names_its_command(opinion_run: Path, store: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(opinion_run, tmp_path / "run"))
    record = read_record(run / "run.json") | {"state": "running"}
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(IntegrityError, match=naming("run: ", "distill train-student --task opinion")):
        run_page(config_for(run, store), run)


@pytest.mark.parametrize("kind", ["score", "bins"])
def test_a_run_with_scores(kind: str, ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    root = ratings[kind].root
    train(tiny_config(root, tmp_path / "run", num_train_epochs=1), "distill train-student")
    page = run_page(config_for(tmp_path / "run", root.parent), tmp_path / "run")
    figures = figures_of(page)
    rows = logits_of(
        ExampleSet.open(root).read("validation", ("logits",)), ratings[kind].record.target.num_logits
    ).shape[0]
    for title in ("Scores of the teacher", "Scores of the student", "Student against teacher"):
        assert sum(row["n"] for row in figures["Split validation", title]) == rows
    assert sum(row["all rows"] for row in figures["Split validation", "Errors"]) == rows


@pytest.fixture(scope="module")
def swept(ratings: dict[str, ExampleSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    root = ratings["score"].root
    base = given(tiny_config(root, folder, num_train_epochs=1)) | {"hidden_size": None}
    sweep(SweepSettings.from_flags(**base | {"grid": ("hidden_size=2,16",), "seeds": 2}), "distill sweep")
    return folder


def test_a_sweeps_points_their_sizes_and_speeds(swept: Path, ratings: dict[str, ExampleSet]) -> None:
    page = sweep_page(config_for(swept, ratings["score"].root.parent), swept)
    result = read_record(swept / "sweep.json")["result"]
    parsed = Parsed(render(page))
    rows = [[row[1], row[2], row[4]] for row in parsed.tables["validation pearson"][1:]]
    assert rows == [[str(p["values"]["hidden_size"]), f"{p['mean']:.4f}", "2"] for p in result["points"]]
    figures = figures_of(page)
    sizes = {row["no."]: row["parameters"] for row in figures["What the scores cost", "Score against size"]}
    runs = [swept / f"hidden_size={point['values']['hidden_size']},seed=42" for point in result["points"]]
    assert sizes == {str(number): num_parameters(Student.load(run)) for number, run in enumerate(runs, 1)}
    assert sizes["1"] != sizes["2"]
    speeds = [row["rows a second"] for row in figures["What the scores cost", "Score against speed"]]
    assert len(speeds) == 2
    assert min(speeds) > 0
    by_value = {row["hidden_size"]: row["validation pearson"] for row in figures["By value", "hidden size"]}
    assert by_value == {str(p["values"]["hidden_size"]): list(p["scores"].values()) for p in result["points"]}
    assert list(by_value) == ["2", "16"]
    assert needs_nothing_else(render(page))


def test_all_that_are_the_best_of_a_sweep_are_named(swept: Path, tmp_path: Path) -> None:
    record = read_record(swept / "sweep.json")
    best = record["result"]["points"][0]
    for count in (1, 2, 5):
        record["result"]["points"] = [best | {"values": {"hidden_size": size}} for size in range(count)]
        (tmp_path / "sweep.json").write_text(json.dumps(record))
        lead = sweep_page(config_for(tmp_path, tmp_path), tmp_path).lead
        assert [f"hidden_size {size}" in lead for size in range(count)] == [size < 3 for size in range(count)]
        assert ("2 more" in lead) == (count == 5)


def test_a_sweep_without_its_runs_has_its_table(swept: Path, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text((swept / "sweep.json").read_text())
    page = sweep_page(config_for(tmp_path, tmp_path), tmp_path)
    assert "folders of the runs" in render(page)
    assert [title for _, title in figures_of(page)] == ["hidden size"]


def test_a_pretraining_run_has_its_curves(token_store: Path, tmp_path: Path) -> None:
    flags = {"matrix_size": 3, "vector_size": 5, "per_device_train_batch_size": 9, "max_steps": 2, "save_steps": 1}
    config = PretrainSettings.from_flags(set="topk", store=token_store, output_dir=tmp_path / "run", **flags)
    history = pretrain(config, "distill pretrain-student")["result"]["history"]
    page = run_page(config_for(tmp_path / "run", token_store), tmp_path / "run")
    figures = figures_of(page)
    assert [(row["step"], row["training"]) for row in figures["Training", "Loss"]] == [
        (entry["step"], entry["loss"]) for entry in history
    ]
    accuracy = [row["masked accuracy"] for row in figures["Training", "Masked accuracy"]]
    assert accuracy == [entry["metrics"]["validation"]["masked_accuracy"] for entry in history]
    assert len(accuracy) == 2
    tables = {table.title: table for section in page.sections for table in section.tables}
    last = history[-1]["metrics"]
    told = [value for _, value in tables["Guessing without the context"].rows]
    assert told[0] == last["validation"]["gold_loss"]
    assert sorted(told[1:]) == sorted(last["control"].values())
    assert needs_nothing_else(render(page))
