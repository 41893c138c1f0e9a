"""Judgements of scores: each situation is found, with its numbers and names, and none where there is nothing to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from distill.apps.score_advice import judge, judge_rows, judge_teacher
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_record, write_record
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.students import tiny_config


def both(score: float) -> dict[str, float]:
    return {"accuracy": score, "macro_f1": score}


def counts(**predicted: int) -> dict[str, dict[str, float]]:
    """Scores by label, of labels with five rows each."""
    return {name: {"gold": 5, "predicted": count} for name, count in predicted.items()}


def parts_of(student: float, teacher: float, baseline: float | None, **more: Any) -> dict[str, Any]:
    bag = {} if baseline is None else {"baseline": {"scores": both(baseline), "bytes": 1}}
    return {"gold": both(student), "teacher": both(teacher), "majority": both(0.5)} | bag | more


def with_f1(rare: float) -> dict[str, dict[str, float]]:
    """Scores by label, of a frequent and a rare one."""
    return {"often": {"gold": 9, "predicted": 9, "f1": 1.0}, "rare": {"gold": 1, "predicted": 1, "f1": rare}}


@pytest.mark.parametrize("who", ["teacher", "student"])
@pytest.mark.parametrize(("rare", "is_below"), [(0.2, True), (0.6, False)])
def test_macro_f1_is_compared_also_where_the_metric_is_accuracy(who: str, rare: float, is_below: bool) -> None:
    scores = {"gold": {"accuracy": 0.9}, "teacher": {"accuracy": 0.9}, "majority": {"accuracy": 0.8}}
    bag = {"baseline": {"scores": {"accuracy": 0.85, "macro_f1": 0.7}, "bytes": 1}}
    labels = {"by_label": with_f1(0.9), "teacher_by_label": with_f1(0.9)}
    labels["by_label" if who == "student" else "teacher_by_label"] = with_f1(rare)
    found = [line for line in judge(scores | bag | labels) if "n-grams" in line]
    expected = f"{who} by macro_f1 ({(1 + rare) / 2:.3f} against 0.700)"
    assert [expected in line for line in found] == [True] * is_below


@pytest.mark.parametrize(("most", "is_judged"), [(55, True), (90, False)])
def test_accuracy_is_not_compared_if_most_rows_have_one_label(most: int, is_judged: bool) -> None:
    parts = parts_of(0.6, 0.9, 0.7, confusion={"often": {"often": most}, "rare": {"often": 100 - most}})
    parts["gold"]["macro_f1"], parts["baseline"]["scores"]["macro_f1"] = 0.6, 0.5
    assert any("better than the student by accuracy" in line for line in judge(parts)) == is_judged


@pytest.mark.parametrize(("decided", "is_below"), [(0.6, True), (0.8, False)])
def test_the_labels_that_a_student_predicts_are_compared(decided: float, is_below: bool) -> None:
    found = judge(parts_of(0.6, 0.9, 0.7, decided=both(decided)))
    assert any("n-grams" in line and f"({decided:.3f} against 0.700)" in line for line in found) == is_below


def multilabel(**labels: tuple[int, int, float]) -> dict[str, Any]:
    """Scores on 100 rows with several labels each, of which gold, predictions and precision are given."""
    keys = ("gold", "predicted", "precision")
    by_label = {name: dict(zip(keys, values, strict=True)) for name, values in labels.items()}
    scores = {"gold": {"macro_f1": 0.6}, "teacher": {}, "majority": {"macro_f1": 0.0}}
    return scores | {"rows": {"scored": 100}, "by_label": by_label, "confusion": {}}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (parts_of(0.8, 0.9, 0.7), []),
        (parts_of(0.8, 0.9, None, rows={"scored": 9, "without_gold": 0}), []),
        (parts_of(0.8, 0.9, None, rows={"scored": 4, "without_gold": 1, "not_in_the_set": 300}), [("4 of 305", "300")]),
        (parts_of(0.8, 0.9, 0.85), [("student", "accuracy", "macro_f1")]),
        (parts_of(0.8, 0.6, 0.7), [("teacher", "accuracy", "macro_f1"), ("student",)]),
        (parts_of(0.5, 0.5, None), [("teacher",), ("student", "guessing", "accuracy (0.500 against 0.500)")]),
        (parts_of(0.8, 0.9, None, teacher_by_label=counts(refund=0, other=9)), [("teacher never predicts refund",)]),
        (parts_of(0.8, 0.9, None, by_label=counts(refund=0, other=9)), [("student never predicts refund",)]),
        (
            parts_of(0.8, 0.9, None, by_label=counts(refund=0), teacher_by_label=counts(refund=0)),
            [("teacher never predicts refund",)],
        ),
        (parts_of(0.8, 0.9, None, confusion={"a": {"a": 9}, "b": {"a": 1}}), [("90%", "'a'")]),
        (parts_of(0.8, 0.9, None, confusion={"a": {"a": 5}, "b": {"b": 5}}), []),
        ({"gold": both(0.4), "teacher": {}, "majority": both(0.5)}, [("0.400 against 0.500", "more rows")]),
        (parts_of(0.4, 0.9, None), [("0.400 against 0.500", "more rows")]),
        (parts_of(0.4, 0.4, None), [("0.400 against 0.500", "teacher first")]),
        (
            parts_of(0.05, 0.9, 0.06, confusion={"no": {"no": 1, "yes": 9}, "yes": {"no": 10}}),
            [("'yes' where gold is 'no'", "'no' where gold is 'yes'")],
        ),
        (
            parts_of(0.4, 0.9, None, confusion={"a": {"a": 9}, "b": {"c": 8, "b": 1}, "c": {"b": 9}}),
            [("'c' where gold is 'b'", "'b' where gold is 'c'")],
        ),
        (parts_of(0.4, 0.9, None, confusion={"a": {"a": 4, "b": 6}, "b": {"a": 6, "b": 4}}), [("more rows",)]),
        (
            {"gold": {"pearson": -0.9}, "teacher": {}, "majority": {"pearson": 0.0}},
            [("pearson -0.900", "direction of gold")],
        ),
        (multilabel(a=(40, 60, 0.0), b=(50, 50, 0.1)), [("gold is reversed",)]),
        (multilabel(a=(40, 60, 0.6), b=(50, 50, 0.1), c=(9, 0, 0.0)), [("student never predicts c",)]),
        ({"gold": both(0.51), "teacher": {}, "majority": both(0.5)}, []),
        ({"gold": {}, "teacher": {}, "majority": {}}, []),
    ],
)
def test_scores_are_judged(parts: dict[str, Any], words: list[tuple[str, ...]]) -> None:
    found = judge(parts)
    assert len(found) == len(words)
    assert all(word in line for part, line in zip(words, found, strict=True) for word in part)


def test_a_file_that_may_not_suit_the_student_is_compared_with_its_own_rows() -> None:
    (found,) = judge({"gold": both(0.4), "teacher": {}, "majority": both(0.5)}, is_file=True)
    assert "evaluate" in found


def test_a_teacher_that_leaves_labels_out_is_judged_by_its_best_epoch() -> None:
    seen = {"accuracy": 0.9, "labels_in_gold": 6, "labels_predicted": 4}
    (line,) = judge_teacher({"epoch": 1, "loss": 0.1, "metrics": {"validation": seen}})
    assert "2 of the 6" in line
    assert judge_teacher({"epoch": 1, "metrics": {"validation": seen | {"labels_predicted": 6}}}) == []
    assert judge_teacher({"epoch": 1, "metrics": {"validation": {"accuracy": 0.9}}}) == []
    assert judge_teacher({"epoch": 1, "metrics": {}}) == []


def test_a_score_below_that_of_fewer_rows_is_found_if_it_is_not_chance(opinion_run: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "augmented", tmp_path / "plain"
    for folder in (run, other):
        shutil.copytree(opinion_run, folder)
    record = read_record(run / RUN_RECORD)
    assert judge_rows(run, record) == []

    def scored(accuracy: float, rows: int) -> None:
        changed = read_record(opinion_run / RUN_RECORD)
        changed["settings"]["rows"] = rows
        changed["result"]["evaluation"]["validation"]["gold"]["accuracy"] = accuracy
        write_record(other / RUN_RECORD, changed)

    accuracy = record["result"]["evaluation"]["validation"]["gold"]["accuracy"]
    fewer = record["settings"]["rows"] - 10
    high = record["result"]["evaluation"]["validation"]["interval"]["accuracy"][1]
    scored(high + 0.01, fewer)
    (line,) = judge_rows(run, record)
    assert all(part in line for part in (f"{accuracy:.3f}", f"{high + 0.01:.3f}", str(fewer), "plain"))
    scored(high - 0.001, fewer)
    assert judge_rows(run, record) == []
    scored(high + 0.01, fewer + 20)
    assert judge_rows(run, record) == []
    # A test split decides, because the validation rows selected the epoch.
    evaluation = record["result"]["evaluation"]
    evaluation["test"] = evaluation["validation"]
    scored(high + 0.01, fewer)
    assert judge_rows(run, record) == []


def upper_and_spaced(line: str) -> str:
    """A row of JSON with its text in capitals, and with other spaces."""
    row = json.loads(line)
    return json.dumps(row | {"sentence1": f" {row['sentence1'].upper()} ".replace(" ", "  ")})


def test_rows_of_a_file_that_were_trained_on_are_counted(work: Path, opinion_run: Path, tmp_path: Path) -> None:
    train = (work / "data/opinion/train.jsonl").read_text().splitlines()[:3]
    new = [{"sentence1": "a new text", "label": 1}, {"sentence1": " ", "label": 0}]
    (tmp_path / "june.jsonl").write_text("\n".join([*train, *map(json.dumps, new)]) + "\n")
    done = invoke("evaluate", opinion_run, "--data", tmp_path / "june.jsonl", "--json")
    assert done.exit_code == 0, done.stderr
    (parts,) = json.loads(done.stdout).values()
    assert any(line.startswith("3 of 5 rows") for line in parts["judgements"])
    (tmp_path / "copies.jsonl").write_text("\n".join(map(upper_and_spaced, train)) + "\n")
    done = invoke("evaluate", opinion_run, "--data", tmp_path / "copies.jsonl", "--json")
    (parts,) = json.loads(done.stdout).values()
    assert any(line.startswith("3 of 3 rows") for line in parts["judgements"])
    (tmp_path / "other.jsonl").write_text("\n".join(map(json.dumps, new)) + "\n")
    done = invoke("evaluate", opinion_run, "--data", tmp_path / "other.jsonl", "--json")
    (parts,) = json.loads(done.stdout).values()
    assert not any("training row" in line for line in parts["judgements"])


def test_train_student_and_evaluate_print_judgements(store: Path, tmp_path: Path) -> None:
    train(tiny_config(store / "opinion", tmp_path / "run", num_train_epochs=1), "")
    found = invoke("evaluate", tmp_path / "run", "--json")
    assert found.exit_code == 0, found.stderr
    sizes = ("--matrix-size", "3", "--vector-size", "5", "--num-train-epochs", "1", "--output-dir", tmp_path / "other")
    assert isinstance(json.loads(found.stdout)["validation"]["judgements"], list)
    trained = invoke("train-student", "--set", store / "opinion", *sizes, "--json")
    assert isinstance(json.loads(trained.stdout)["judgements"]["validation"], list)
