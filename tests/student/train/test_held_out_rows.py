"""Training rows that select the best epoch, and what the student's record contains about them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from pipeline.arrays import Ragged
from pipeline.errors import ConfigError, DataError
from pipeline.sets.file_columns import write_file_columns
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sources import load_source
from pipeline.tasks.target import NO_LABEL, Target, predicted_scores, softmax
from pipeline.tasks.task import load_task
from pipeline.tasks.temperature import Calibration, fit_calibration
from pipeline.text.near_copies import groups_of
from pipeline.training.batches import held_out_rows
from student.data import Examples, hold_out, load_examples, with_groups
from student.evaluate import evaluate, evaluate_file
from student.export.export import export
from student.lessons.examples import score_student, student_logits
from student.model.student import Student
from student.model.weights import save_config
from student.predict.certify import certify
from student.predict.predictor import Predictor
from student.run_settings import CertifySettings, EvaluateSettings, ExportSettings
from student.sklearn import StudentClassifier
from student.source_settings import CalibrationRows
from student.sql_functions import register
from student.train import train
from student.training_data import StudentTraining, build_student_config, load_data
from teacher.dumps import dump
from teacher.finetune.tasks import hold_out as hold_out_of_source
from tests.helpers.asgi import ask
from tests.helpers.commands import invoke
from tests.helpers.dumps import TRAIN_ROWS, dump_config
from tests.helpers.engine import LIBRARY
from tests.helpers.joint_runs import same, tasks_config
from tests.helpers.messages import naming
from tests.helpers.node import PROGRAM, running_node
from tests.helpers.students import tiny_config

SHARE = 0.25
TARGET = Target(kind="classes", names=("bad", "good"))
HALF = [0, 2]  # of four source rows with gold those that `held_out_rows` names; a test holds it


def rows_of(keys: list[tuple[int, int]], gold: list[int]) -> Examples:
    """Rows whose ids, weights and logits contain their number."""
    count = len(keys)
    return Examples(
        Ragged.of([[k, k] for k in range(count)]),
        Ragged.of([[10 + k] for k in range(count)]),
        np.array(gold),
        np.full(count, np.nan, dtype=np.float32),
        np.array([[k, -k] for k in range(count)], dtype=np.float32),
        np.arange(count, dtype=np.float32),
        np.array(keys),
        "",
    )


def held_out_of(logit_set: ExampleSet) -> list[int]:
    """The rows of the task that are held out: those of some groups of near copies."""
    rows = logit_set.read("train", ("source_row", "sentence1"), "variant = 0")
    held = held_out_rows(groups_of(rows), SHARE).tolist()
    return [rows["source_row"][k].as_py() for k in held]


def test_rows_of_a_group_are_held_out_together() -> None:
    keys = [(k, 0) for k in range(8)]
    rows = replace(rows_of(keys, [0, 1] * 4), group_N=np.array([5, 1, 5, 1, 7, 7, 9, 9]))
    trained, held_out = hold_out(rows, TARGET, 0.5)
    assert len(held_out) == len(trained) == 4
    assert held_out.group_N is not None
    assert trained.group_N is not None
    assert not set(held_out.group_N) & set(trained.group_N)
    for share, count in ((0.25, 2), (0.2, 2), (0.7, 6)):  # as many as fit, or the smallest group
        assert len(hold_out(rows, TARGET, share)[1]) == count
    with pytest.raises(DataError, match=naming("--held-out 0.5: ", "all 8")):
        hold_out(replace(rows, group_N=np.zeros(8, dtype=np.int64)), TARGET, 0.5)


def test_a_teacher_and_its_student_hold_out_the_same_groups(
    opinion_set: ExampleSet, work: Path, tmp_path: Path
) -> None:
    task = load_task(manifest=work / "opinion.yaml")
    source = load_source(task, work / "data")
    by_teacher = hold_out_of_source(source, SHARE)["held-out"]["source_row"].to_pylist()
    rows = with_groups(opinion_set, load_examples(opinion_set, "train"), None)
    assert hold_out(rows, opinion_set.record.target, SHARE)[1].key_N2[:, 0].tolist() == by_teacher

    kept = pa.table({"customer": [f"{k % 12}" for k in range(TRAIN_ROWS)]})
    source = replace(source, kept={"train": kept})
    by_teacher = hold_out_of_source(source, SHARE, "customer")["held-out"]["source_row"].to_pylist()
    assert sorted({row % 12 for row in by_teacher}) == sorted(row for row in by_teacher if row < 12)
    assert len(by_teacher) == TRAIN_ROWS // 4
    shutil.copytree(opinion_set.root, tmp_path / "opinion")
    write_file_columns(tmp_path / "opinion", source.kept)
    record = train(tiny_config(tmp_path / "opinion", tmp_path / "run", held_out=SHARE, group="customer"), "")
    assert (record["settings"]["group"], record["settings"]["rows_held_out"]) == ("customer", TRAIN_ROWS // 4)
    own_set = ExampleSet.open(tmp_path / "opinion")
    rows = with_groups(own_set, load_examples(own_set, "train"), "customer")
    assert hold_out(rows, TARGET, SHARE)[1].key_N2[:, 0].tolist() == by_teacher
    with pytest.raises(ConfigError, match=naming("--group costumer: ", "customer")):
        hold_out_of_source(source, SHARE, "costumer")
    with pytest.raises(ConfigError, match=naming("--group costumer: ", str(own_set.root), "customer")):
        with_groups(own_set, rows, "costumer")


def test_variants_of_held_out_rows_are_in_neither_part_and_rows_without_gold_are_trained_on() -> None:
    assert held_out_rows(np.arange(4), 0.5).tolist() == HALF
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (5, 0), (5, 1)]  # row 3 has no gold
    gold = [1, NO_LABEL, 0, NO_LABEL, 1, NO_LABEL, 0, NO_LABEL]
    trained, held_out = hold_out(rows_of(keys, gold), TARGET, 0.5)
    assert [tuple(key) for key in trained.key_N2.tolist()] == [(1, 0), (1, 1), (3, 0), (5, 0), (5, 1)]
    assert [tuple(key) for key in held_out.key_N2.tolist()] == [(0, 0), (2, 0)]
    for part, places in ((trained, [2, 3, 5, 6, 7]), (held_out, [0, 4])):
        assert part.ids1.lists() == [[k, k] for k in places]
        assert part.ids2 is not None
        assert part.ids2.lists() == [[10 + k] for k in places]
        assert part.label_N.tolist() == [gold[k] for k in places]
        assert part.teacher_NC[:, 0].tolist() == part.weight_N.tolist() == places
        assert len(part.score_N) == len(places)


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match=naming("--held-out 0.1: ", "0 of 2")):
        hold_out(rows_of([(0, 0), (1, 0)], [0, 1]), TARGET, 0.1)


def test_held_out_rows_choose_the_epoch_and_teach_nothing(store: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    record = train(tiny_config(store / "opinion", tmp_path / "run", held_out=SHARE, num_train_epochs=6), "")
    result, held = record["result"], held_out_of(opinion_set)
    assert record["settings"]["rows_held_out"] == len(held) == TRAIN_ROWS // 4
    assert list(result["best"]["metrics"]) == list(result["evaluation"]) == ["held-out", "validation"]
    by_epoch = [entry["metrics"]["held-out"]["accuracy"] for entry in result["history"]]
    assert result["best"]["epoch"] == 1 + by_epoch.index(max(by_epoch))
    listed = f"source_row in ({', '.join(map(str, held))})"
    kept = score_student(Student.load(tmp_path / "run"), load_examples(opinion_set, "train", listed))
    assert kept["accuracy"] == pytest.approx(max(by_epoch))
    assert result["evaluation"]["held-out"]["gold"]["accuracy"] == pytest.approx(max(by_epoch))


def test_the_student_is_that_of_the_other_rows(store: Path, opinion_set: ExampleSet, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "one", held_out=SHARE, num_train_epochs=1), "")
    others = f"source_row not in ({', '.join(map(str, held_out_of(opinion_set)))})"
    train(tiny_config(store / "opinion", tmp_path / "other", where=others, num_train_epochs=1), "")
    assert same(tmp_path / "one", tmp_path / "other")


def test_a_share_that_holds_out_nothing_leaves_no_folder(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("--held-out 0.001: ", f"0 of {TRAIN_ROWS}")):
        train(tiny_config(store / "opinion", tmp_path / "run", held_out=0.001), "")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="--held-out: "):
        tiny_config(store / "opinion", tmp_path / "run", held_out=1)


def test_of_a_set_without_dev_rows_the_best_epoch_is_known(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(dump_config(work, "opinion", tmp_path / "store", splits="train"), "")
    record = train(tiny_config(tmp_path / "store/opinion", tmp_path / "run", held_out=SHARE), "")
    assert list(record["result"]["best"]["metrics"]) == ["held-out"]
    assert "warning: " not in capsys.readouterr().err


def test_each_of_several_tasks_holds_out_its_own(task_sets: list[Path], tmp_path: Path) -> None:
    record = train(tasks_config(task_sets, tmp_path / "run", held_out=SHARE, num_train_epochs=1), "")
    metrics = record["result"]["best"]["metrics"]
    parts = [next(iter(metrics[f"{name}/held-out"].values())) for name in ("opinion", "roles", "score")]
    assert metrics["tasks"]["mean"] == pytest.approx(sum(parts) / 3)
    names = {f"{name}/{split}" for name in ("opinion", "roles", "score") for split in ("held-out", "validation")}
    assert set(metrics) == {"tasks"} | names


ROWS = 50  # the fewest, of the 96 that there are
TEXTS = ["the food was lovely .", "the wine was awful .", "x", "the music was dull . " * 9]
HOT = Calibration(temperature=(2.5,), num_rows=ROWS)


@pytest.fixture(scope="module")
def hot_run(opinion_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose student has a temperature."""
    folder = tmp_path_factory.mktemp("hot") / "run"
    shutil.copytree(opinion_run, folder)
    student = Student.load(folder)
    student.config = student.config.model_copy(update={"calibration": HOT})
    save_config(folder, student.config_json)
    return folder


@pytest.fixture(scope="module")
def p_N2(opinion_run: Path) -> np.ndarray:
    """What the student's probabilities are after its calibration."""
    return softmax(Predictor(opinion_run).logits(TEXTS) / np.float32(2.5))


@pytest.mark.parametrize(
    ("splits", "share", "first"),
    [
        (["test"], None, "held-out"),
        (["test", "validation"], None, "validation"),
        (["test"], SHARE, "held-out"),
        (["validation"], None, "validation"),
    ],
)
def test_a_test_split_does_not_select_the_epoch(
    splits: list[str], share: float | None, first: str, store: Path, tmp_path: Path
) -> None:
    (data,) = load_data(tiny_config(store / "opinion", tmp_path))
    dev = data.splits["validation"]
    data = replace(data, splits={"train": data.splits["train"]} | dict.fromkeys(splits, dev))
    settings = tiny_config(store / "opinion", tmp_path, num_train_epochs=1, held_out=share)
    record = train(settings, "", [data])
    assert next(iter(record["result"]["evaluation"])) == first
    assert list(record["result"]["best"]["metrics"])[-1] == splits[0]
    assert record["settings"]["held_out"] == (0.1 if first == "held-out" and share is None else share)


def test_rows_that_calibrate_are_not_trained_on(store: Path, tmp_path: Path) -> None:
    settings = tiny_config(store / "opinion", tmp_path / "one", calibration_rows=ROWS)
    record = train(settings, "")
    (data,) = load_data(settings)
    training = StudentTraining(
        settings, build_student_config(settings, data.logit_set, data.facts)[0], data, 0, tmp_path
    )
    rows, trained = training.calibration_rows, training.splits["train"]
    assert rows is not None
    assert (len(rows), len(trained)) == (ROWS, TRAIN_ROWS - ROWS)
    assert sorted([*rows.key_N2[:, 0], *trained.key_N2[:, 0]]) == list(range(TRAIN_ROWS))
    assert record["settings"]["rows_for_calibration"] == ROWS
    listed = f"source_row in ({', '.join(map(str, trained.key_N2[:, 0]))})"
    train(tiny_config(store / "opinion", tmp_path / "other", where=listed), "")
    assert same(tmp_path / "one", tmp_path / "other")  # config.json left out, which holds the temperature
    student = Student.load(tmp_path / "one")
    fitted = fit_calibration(student.config.target, student_logits(student, rows), rows.label_N, rows.score_N)
    assert student.config.calibration == fitted
    assert fitted is not None
    assert record["result"]["calibration"] == fitted.model_dump()


def test_held_out_rows_calibrate_too(store: Path, tmp_path: Path) -> None:
    record = train(tiny_config(store / "opinion", tmp_path, held_out=0.6), "")
    assert record["settings"]["rows_held_out"] == record["settings"]["rows_for_calibration"] == 58
    assert record["result"]["calibration"]["num_rows"] == 58
    scores = record["result"]["evaluation"]["validation"]["calibration"]
    assert set(scores) == {"calibration_error", "brier", "log_loss"}
    assert set(scores["brier"]) == {"before", "before_interval", "after", "after_interval"}
    assert evaluate(EvaluateSettings(run=tmp_path, store=store))["validation"]["calibration"] == scores
    shown = invoke("evaluate", tmp_path, "--store", store, "--json")
    assert json.loads(shown.stdout)["validation"]["calibration"] == scores


def test_by_default_one_row_in_twenty_calibrates() -> None:
    usual = CalibrationRows()
    counts = {96: 0, 999: 0, 1000: 50, 4030: 201, 20_000: 1000, 400_000: 1000}
    assert {rows: usual.number_of(rows, are_held_out=False) for rows in counts} == counts
    assert usual.number_of(4030, are_held_out=True) == 0
    assert CalibrationRows(calibration_rows=0).number_of(4030, are_held_out=False) == 0


def test_too_many_rows_and_too_few(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--calibration-rows 49: ", "50")):
        tiny_config(store / "opinion", tmp_path / "run", calibration_rows=49)
    with pytest.raises(DataError, match=naming("--calibration-rows 96: ", f"{TRAIN_ROWS}")):
        train(tiny_config(store / "opinion", tmp_path / "run", calibration_rows=TRAIN_ROWS), "")
    assert not (tmp_path / "run").exists()


def test_scores_have_an_interval(ratings: dict[str, ExampleSet], tmp_path: Path) -> None:
    run = tmp_path / "run"
    record = train(tiny_config(ratings["score"].root, run, held_out=0.6), "")
    half = record["result"]["calibration"]["half_width"]
    predictor = Predictor(run)
    score_N = predicted_scores(predictor.info.target, predictor.logits(TEXTS))
    for answer, score in zip(predictor(TEXTS), score_N.tolist(), strict=True):
        # No interval leaves the task's scale.
        assert answer == {"score": score, "interval": [min(max(score + d, 1), 6) for d in (-half, half)]}
    interval = predictor.columns(TEXTS)["interval"].to_pylist()
    assert [[one["low"], one["high"]] for one in interval] == [
        pytest.approx(answer["interval"], rel=1e-5) for answer in predictor(TEXTS)
    ]
    # -1 stands for missing gold, because the scale begins at 1.
    rows = [{"sentence1": text, "score": score} for text, score in zip(TEXTS, (-1, 2), strict=False)]
    (tmp_path / "june.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (parts,) = evaluate_file(EvaluateSettings.from_flags(run=run, data=tmp_path / "june.jsonl"))[0].values()
    assert (parts["rows"]["scored"], parts["rows"]["without_gold"]) == (1, 1)
    coverage = next(iter(record["result"]["evaluation"].values()))["calibration"]["coverage"]
    assert coverage["after"] >= 0.9  # of the very rows that it was fitted on


def test_python_gives_calibrated_probabilities_and_raw_logits(
    hot_run: Path, opinion_run: Path, p_N2: np.ndarray
) -> None:
    hot, plain = Predictor(hot_run), Predictor(opinion_run)
    np.testing.assert_array_equal(hot.logits(TEXTS), plain.logits(TEXTS))
    answers = hot(TEXTS)
    np.testing.assert_allclose([list(one["probabilities"].values()) for one in answers], p_N2, rtol=1e-5)
    assert [one["label"] for one in answers] == [one["label"] for one in plain(TEXTS)]
    np.testing.assert_allclose(StudentClassifier.of_run(hot_run).predict_proba(TEXTS), p_N2, rtol=1e-5)
    for answer, before in zip(hot.explain(TEXTS[:2]), plain.explain(TEXTS[:2]), strict=True):
        for word, other in zip(answer["words"], before["words"], strict=True):
            assert word["effect"] != other["effect"]


def test_files_and_sql_give_them(hot_run: Path, tmp_path: Path, p_N2: np.ndarray) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"sentence1": text}) + "\n" for text in TEXTS))
    out = tmp_path / "out.parquet"
    invoke("predict", str(hot_run), "--file", str(tmp_path / "in.jsonl"), "--output", str(out))
    rows = pq.read_table(out).to_pylist()
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], p_N2, rtol=1e-5)
    np.testing.assert_allclose([row["margin"] for row in rows], np.abs(p_N2[:, 0] - p_N2[:, 1]), rtol=1e-4)
    with duckdb.connect() as connection:
        register(connection, hot_run)
        found = connection.execute(f"select scores('{hot_run}', t) from (select unnest(?) as t)", [TEXTS]).fetchall()
    np.testing.assert_allclose([row[0] for row in found], p_N2, rtol=1e-5)


def test_http_gives_them_and_raw_scores_stay_raw(hot_run: Path, opinion_run: Path, p_N2: np.ndarray) -> None:
    metrics, config = Metrics(1), ServeSettings(runs=(str(hot_run),))
    served = App({"hot": Served(hot_run, metrics)}, config, metrics)
    answer = ask(served, "POST", "/predict", {"inputs": [[text] for text in TEXTS]})
    found = [{one["label"]: one["score"] for one in row} for row in json.loads(answer.body)]
    names = Predictor(hot_run).info.target.names
    np.testing.assert_allclose([[row[name] for name in names] for row in found], p_N2, rtol=1e-5)
    raw = json.loads(ask(served, "POST", "/predict", {"inputs": TEXTS[:1], "raw_scores": True}).body)
    logits = dict(zip(names, Predictor(opinion_run).logits(TEXTS[:1])[0].tolist(), strict=True))
    assert {one["label"]: one["score"] for one in raw} == pytest.approx(logits)


@pytest.mark.skipif(not LIBRARY.exists(), reason="the engine was not built")
def test_a_file_of_the_engine_gives_them(hot_run: Path, tmp_path: Path, p_N2: np.ndarray) -> None:
    export(ExportSettings(run=hot_run, file=tmp_path / "one.distill"))
    predictor = Predictor(tmp_path / "one.distill")
    assert predictor.info.calibration == HOT
    found = [list(one["probabilities"].values()) for one in predictor(TEXTS)]
    np.testing.assert_allclose(found, p_N2, rtol=1e-3)


@pytest.mark.skipif(PROGRAM is None, reason="needs Node")
def test_the_html_file_gives_them(hot_run: Path, opinion_run: Path, tmp_path: Path) -> None:
    found = []
    for number, run in enumerate((hot_run, opinion_run)):
        export(ExportSettings(run=run, html=tmp_path / f"{number}.html"))
        with running_node() as node:
            answer = node.ask(tmp_path / f"{number}.html", TEXTS)
        found.append((answer["logits"], [list(one["probabilities"].values()) for one in answer["predictions"]]))
    (hot, p_hot), (plain, p_plain) = found
    assert hot == plain
    np.testing.assert_allclose(p_hot, softmax(np.array(plain, np.float32) / np.float32(2.5)), rtol=1e-4)
    np.testing.assert_allclose(p_plain, softmax(np.array(plain, np.float32)), rtol=1e-4)


def test_a_certificate_is_about_calibrated_margins(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path, where="source_row % 2 = 0", num_train_epochs=6), "")
    flags = {"run": tmp_path, "store": store, "where": "source_row % 2 = 1", "disagreement": 0.5, "confidence": 0.6}
    plain = certify(CertifySettings(**flags))
    student = Student.load(tmp_path)
    student.config = student.config.model_copy(update={"calibration": HOT})
    save_config(tmp_path, student.config_json)
    hot = certify(CertifySettings(**flags))
    # The same rows in the same order, by other margins, for a student of another config.json.
    assert [trial.disagreements for trial in hot.trials] == [trial.disagreements for trial in plain.trials]
    assert 0 < hot.trials[0].threshold < plain.trials[0].threshold
    assert hot.student_sha256 != plain.student_sha256
