"""A multi-label task through every command, by a tiny teacher."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distill.apps.experiments import measure
from distill.apps.experiments.baselines import BASELINES
from distill.apps.experiments.measure import TaskCells
from distill.apps.serve.served import rankings
from distill.apps.teacher_advice import judged_set
from pipeline.errors import IntegrityError, QueryError
from pipeline.query.mixture import open_sets
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sources.gold import LABEL_LISTS
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import sigmoid
from pipeline.tasks.task import load_task
from pipeline.training.run_record import stored_thresholds
from student.evaluate import evaluate, evaluate_file
from student.model.student import Student
from student.predict.predictor import Predictor
from student.run_settings import EvaluateSettings
from student.sql_functions import register
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.messages import naming
from tests.helpers.multilabel import TOPICS, dump_topics
from tests.helpers.students import tiny_config

TEXTS = ["the food was great but the service was rude .", "the music was dull ."]


@pytest.fixture(scope="module")
def folder(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("topics")
    dump_topics(folder, work)
    train(tiny_config(folder / "store/topics", folder / "run", num_train_epochs=6), "distill train-student")
    return folder


@pytest.fixture(scope="module")
def topics(folder: Path) -> ExampleSet:
    return ExampleSet.open(folder / "store/topics")


def test_the_set_holds_lists_of_labels(topics: ExampleSet) -> None:
    rows = topics.read("train", ("sentence1", "label", "logits"))
    for text, label in zip(rows.column("sentence1").to_pylist(), rows.column("label").to_pylist(), strict=True):
        assert label == [k for k, topic in enumerate(TOPICS) if topic in text]
    scores = score_logits(("micro_f1", "macro_f1"), topics.record.target, *topics.gold("validation"))
    assert topics.record.scores["validation"] == scores
    assert topics.record.target.kind == "labels"


@pytest.mark.parametrize("lists", [[[0, 3]], [[2, 0]], [[1, 1]], [[None]], [[-1]]])
def test_lists_that_are_none_of_the_labels_are_found(topics: ExampleSet, lists: list[list[int | None]]) -> None:
    check = ExampleSet.row_kind.check(topics.record)
    path = topics.root / topics.record.shards[0].path
    assert check.shard_problem(topics.record.shards[0], path) is None
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index("label")
    column = pa.array([*lists, *table.column("label").to_pylist()[1:]], LABEL_LISTS)
    changed = path.with_suffix(".changed")
    pq.write_table(table.set_column(place, table.schema.field("label"), column), changed)
    problem = ExampleSet.row_kind.check(topics.record).shard_problem(topics.record.shards[0], changed)
    changed.unlink()
    assert problem is not None
    assert "labels" in problem


def test_sql_says_what_numpy_says(folder: Path, topics: ExampleSet) -> None:
    said = (
        "select avg((likely_labels(logits) = label)::int) as alike, avg(sigmoid(logits)[2]) as p from topics "
        "where split = 'validation'"
    )
    logits_NC, label_NC, _ = topics.gold("validation")
    row = json.loads(invoke("sql", said, "--store", folder / "store", "--json").stdout)[0]
    assert row["alike"] == pytest.approx(((logits_NC > 0) == label_NC).all(axis=1).mean())
    assert row["p"] == pytest.approx(sigmoid(logits_NC)[:, 1].mean(), abs=1e-6)
    query = "select f1 from label_scores(topics) where split = 'validation' order by label"
    f1 = [row["f1"] for row in json.loads(invoke("sql", query, "--store", folder / "store", "--json").stdout)]
    assert np.mean(f1) == pytest.approx(topics.record.scores["validation"]["macro_f1"])
    every = invoke("sql", "select count(*) as n from examples", "--store", folder / "store", "--json")
    assert json.loads(every.stdout)[0]["n"] == topics.record.num_rows


def test_a_condition_on_lists_of_labels_chooses_rows(folder: Path, tmp_path: Path) -> None:
    config = tiny_config(folder / "store/topics", tmp_path, where="list_contains(label, 0)", num_train_epochs=1)
    rows = ExampleSet.open(folder / "store/topics").read("train", ("label",), "list_contains(label, 0)").num_rows
    assert 0 < rows < 60
    assert train(config, "distill train-student")["settings"]["rows"] == rows


def test_held_out_rows_choose_the_thresholds(folder: Path, tmp_path: Path) -> None:
    config = tiny_config(folder / "store/topics", tmp_path, held_out=0.25, num_train_epochs=6)
    parts = train(config, "distill train-student")["result"]["evaluation"]
    assert parts["held-out"]["decided"]["macro_f1"] >= parts["held-out"]["gold"]["macro_f1"]
    assert "`held-out`" in (tmp_path / "README.md").read_text()


def test_thresholds_are_kept_and_used(folder: Path) -> None:
    record = json.loads((folder / "run/run.json").read_text())["result"]
    assert record["thresholds"].keys() == set(TOPICS)
    card = (folder / "run/README.md").read_text()
    assert "`food` " in card
    assert "`validation`" in card
    predictor = Predictor(folder / "run")
    for answer in predictor(TEXTS):
        above = [name for name in TOPICS if answer["probabilities"][name] > record["thresholds"][name]]
        assert answer["label"] == above
    parts = evaluate(EvaluateSettings(run=folder / "run", store=folder / "store"))["validation"]
    assert parts == json.loads(json.dumps(record["evaluation"]["validation"]))
    assert parts["decided"]["macro_f1"] >= parts["gold"]["macro_f1"]


def test_a_student_that_is_saved_elsewhere_keeps_its_thresholds(folder: Path, tmp_path: Path) -> None:
    Student.from_pretrained(folder / "run").save_pretrained(tmp_path / "copy")
    Student.from_pretrained(tmp_path / "copy").save_pretrained(tmp_path / "again")
    stored = stored_thresholds(folder / "run")
    assert stored_thresholds(tmp_path / "again") == stored
    assert set(stored.values()) != {0.5}
    assert Predictor(tmp_path / "again")(TEXTS) == Predictor(folder / "run")(TEXTS)
    (tmp_path / "again" / "thresholds.json").write_text('{"food": 2.5}')
    with pytest.raises(IntegrityError, match=naming("again/thresholds.json: ", "{'food': 2.5}")):
        Predictor(tmp_path / "again")


def test_a_bag_of_words_finds_labels_that_are_words(
    folder: Path, topics: ExampleSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = judged_set(topics)
    assert parts.keys() == {"validation"}
    assert parts["validation"]["baseline"]["scores"]["micro_f1"] > 0.9
    monkeypatch.setattr(measure, "TURN_S", 0.002)
    measured = TaskCells(load_task(manifest=folder / "topics.yaml"), topics, topics, folder / "run", tmp_path)
    compared = measured.baseline("TF-IDF", BASELINES["TF-IDF"], Path(), ())
    assert compared["splits"]["validation"][0]["scores"]["micro_f1"] > 0.9
    (student,) = measured.student("default", [folder / "run"], topics, ())["splits"]["validation"]
    evaluation = json.loads((folder / "run/run.json").read_text())["result"]["evaluation"]["validation"]
    assert student["scores"] == evaluation["gold"]
    assert student["fidelity"] == evaluation["fidelity"]["agreement"]
    measured.baseline("n-grams", BASELINES["n-grams + teacher"], Path(), ())
    assert measured.differences("n-grams", "default")["validation"].keys() == {"metric", "fidelity"}


def test_predict_in_the_terminal_and_of_a_file(folder: Path, tmp_path: Path) -> None:
    shown = invoke("predict", folder / "run", *TEXTS)
    assert shown.exit_code == 0, shown.output
    predicted = json.loads(invoke("predict", folder / "run", *TEXTS, "--json").stdout)
    assert (", ".join(predicted[0]["label"]) or "(none)") in shown.stdout
    pq.write_table(pa.table({"sentence1": TEXTS}), tmp_path / "in.parquet")
    file = ("--file", tmp_path / "in.parquet", "--output", tmp_path / "out.parquet")
    assert invoke("predict", folder / "run", *file).exit_code == 0
    answers = pq.read_table(tmp_path / "out.parquet")
    assert answers.column("label").to_pylist() == [row["label"] for row in predicted]
    assert "margin" not in answers.column_names


def test_a_server_ranks_by_each_labels_own_probability(topics: ExampleSet) -> None:
    ranked = [json.loads(one) for one in rankings(topics.record.target, np.array([[0, np.log(3), -50]], np.float32))[0]]
    assert [row["label"] for row in ranked] == ["service", "food", "music"]
    assert [row["score"] for row in ranked] == pytest.approx([0.75, 0.5, 0], abs=1e-6)


def test_reports_tell_scores_label_by_label(folder: Path, tmp_path: Path) -> None:
    for subject in ("topics", folder / "run"):
        made = invoke("report", subject, "--store", folder / "store", "--output", tmp_path / "page.html")
        assert made.exit_code == 0, made.output
        page = (tmp_path / "page.html").read_text()
        assert "label by label" in page
        assert all(topic in page for topic in TOPICS)


def test_what_is_for_one_label_a_row_is_refused(folder: Path) -> None:
    certified = invoke("certify", folder / "run", "--where", "source_row < 9", "--store", folder / "store")
    assert certified.exit_code == 2
    assert "certify: " in certified.stderr
    import duckdb

    with duckdb.connect() as connection:
        register(connection, folder / "run")
        (scores,) = connection.execute("select scores(?, 'the food')", [str(folder / "run")]).fetchall()
        assert len(scores[0]) == 3
        with pytest.raises((QueryError, duckdb.Error), match=naming("scores(run, text)")):
            connection.execute("select predict(?, 'the food')", [str(folder / "run")]).fetchall()
    voted = invoke("train-student", "--set", folder / "store/topics", "--set", folder / "store/topics")
    assert voted.exit_code == 2


def test_a_row_explained(folder: Path, topics: ExampleSet) -> None:
    row = json.loads(
        invoke("sql", "--explain-row", "topics:validation:0", "--store", folder / "store", "--json").stdout
    )
    logits_NC, label_NC, _ = topics.gold("validation")
    assert row["row"]["gold"] == [name for name, holds in zip(TOPICS, label_NC[0], strict=True) if holds]
    assert row["teacher's answer"]["answer"] == [name for name, x in zip(TOPICS, logits_NC[0], strict=True) if x > 0]


def test_imported_probabilities_are_mixed_and_compared(folder: Path, topics: ExampleSet) -> None:
    lines = []
    for split in ("train", "validation"):
        rows = topics.read(split, ("sentence1", "label"))
        for text, label in zip(*(rows.column(name).to_pylist() for name in ("sentence1", "label")), strict=True):
            p = {topic: 0.9 if k in label else 0.2 for k, topic in enumerate(TOPICS)}
            lines.append(json.dumps({"sentence1": text, "probabilities": p}))
    (folder / "answers.jsonl").write_text("\n".join(lines))
    places = ("--manifest", folder / "topics.yaml", "--data", folder, "--store", folder / "store")
    made = invoke("import", folder / "answers.jsonl", *places, "--teacher", "somebody", "--name", "known")
    assert made.exit_code == 0, made.output
    known = ExampleSet.open(folder / "store/known")
    assert known.record.scores["validation"] == {"micro_f1": 1.0, "macro_f1": 1.0}
    p_NC = sigmoid(known.gold("train")[0])
    assert sorted(set(p_NC.ravel().round(4).tolist())) == pytest.approx([0.2, 0.9])

    mixed = open_sets([folder / "store/topics", folder / "store/known"])
    logits_NC = mixed.gold("train")[0]
    assert sigmoid(logits_NC) == pytest.approx((p_NC + sigmoid(topics.gold("train")[0])) / 2, abs=1e-5)
    vote = invoke("train-student", *("--set", "topics", "--set", "known"), "--mix", "vote", "--store", folder / "store")
    assert "--mix vote: " in vote.stderr

    differ = invoke("diff", "topics", "known", "--store", folder / "store", "--json")
    split = next(row for row in json.loads(differ.stdout)["splits"] if row["split"] == "train")
    alike = ((logits := topics.gold("train")[0]) > 0) == (known.gold("train")[0] > 0)
    assert split["agreement"] == pytest.approx(alike.all(axis=1).mean())
    assert split["kl"] > 0
    assert len(logits) == split["both"]


@pytest.mark.parametrize(
    ("probabilities", "reason"),
    [({"food": 0.9}, "service, music"), ({"food": 0.9, "service": 1.2, "music": 0}, "0 and 1")],
)
def test_wrong_answers_are_named(folder: Path, tmp_path: Path, probabilities: dict[str, float], reason: str) -> None:
    (tmp_path / "answers.jsonl").write_text(json.dumps({"sentence1": TEXTS[0], "probabilities": probabilities}))
    places = ("--manifest", folder / "topics.yaml", "--data", folder, "--store", tmp_path)
    refused = invoke("import", tmp_path / "answers.jsonl", *places, "--teacher", "somebody")
    assert refused.exit_code == 2
    assert reason in refused.stderr


def test_the_surest_labels_against_gold(folder: Path, topics: ExampleSet) -> None:
    logits_NC, label_NC, _ = topics.gold("validation")
    distance_NC = np.abs(sigmoid(logits_NC) - label_NC)
    row, label = np.unravel_index(distance_NC.argmax(), distance_NC.shape)
    query = "select source_row, label, is_gold from label_doubts(topics) where split = 'validation' limit 1"
    told = json.loads(invoke("sql", query, "--store", folder / "store", "--json").stdout)
    assert told == [{"source_row": row, "label": label, "is_gold": bool(label_NC[row, label])}]


def test_variants_have_no_labels(folder: Path, work: Path) -> None:
    masked = {"augment": "mask-pos", "pos_probability": 0, "mask_probability": 0.3, "num_variants": 1, "seed": 1}
    root = dump_topics(folder, work, name="masked", **masked).root
    variants = ExampleSet.open(root).read("train", ("label", "logits"), "variant > 0")
    assert variants.num_rows > 0
    assert variants.column("label").null_count == variants.num_rows
    made = invoke("report", root, "--store", folder / "store", "--output", folder / "masked.html")
    assert made.exit_code == 0, made.output


def test_a_file_has_the_scores_of_the_split_with_its_rows(folder: Path, topics: ExampleSet, tmp_path: Path) -> None:
    expected = evaluate(EvaluateSettings.from_flags(run=folder / "run"))["validation"] | {
        "teacher": {},
        "teacher_by_label": {},
        "fidelity": {},
    }
    flags = {"run": folder / "run", "data": folder / "validation.csv", "manifest": folder / "topics.yaml"}
    (parts,) = evaluate_file(EvaluateSettings.from_flags(**flags))[0].values()
    assert parts == expected
    rows = topics.read("validation", ("sentence1", "label")).to_pylist()
    columns = {"sentence1": [row["sentence1"] for row in rows]}
    columns |= {topic: [k in row["label"] for row in rows] for k, topic in enumerate(TOPICS)}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    (parts,) = evaluate_file(EvaluateSettings.from_flags(run=folder / "run", data=tmp_path / "wide.parquet"))[
        0
    ].values()
    assert parts == expected


def test_lists_of_labels_are_named_in_sql(folder: Path, topics: ExampleSet) -> None:
    query = "select topics, teacher from topics_named where split = 'validation' order by source_row"
    rows = json.loads(invoke("sql", query, "--store", folder / "store", "--json").stdout)
    logits_NC, label_NC, _ = topics.gold("validation")
    for row, logits_C, label_C in zip(rows, logits_NC, label_NC, strict=True):
        assert row["topics"] == [name for name, holds in zip(TOPICS, label_C, strict=True) if holds]
        assert row["teacher"] == [name for name, logit in zip(TOPICS, logits_C, strict=True) if logit > 0]
