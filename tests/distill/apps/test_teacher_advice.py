"""What teachers are judged by: the baseline on their dev rows, and the labels that they never predict."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distill.apps import baseline, teacher_advice
from distill.apps.score_advice import judge
from distill.apps.systems import Rows, read_rows
from distill.apps.teacher_advice import judged_set
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target
from tests.helpers.commands import invoke


def test_a_set_has_the_baseline_of_its_rows(opinion_set: ExampleSet, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = judged_set(opinion_set)
    assert parts.keys() == {"validation"}
    assert parts["validation"]["teacher"].items() >= opinion_set.record.scores["validation"].items()
    train, dev = read_rows(opinion_set, "train"), read_rows(opinion_set, "validation")
    fitted = baseline.fit_baseline(train, opinion_set.record.target)
    expected = baseline.scores_of(fitted, dev, opinion_set.record.metrics)
    assert parts["validation"]["baseline"]["scores"] == expected
    monkeypatch.setattr(baseline, "MAX_CHARACTERS", 100)
    assert "baseline" not in judged_set(opinion_set)["validation"]


def test_texts_without_a_word_have_none(opinion_set: ExampleSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def letters(logit_set: ExampleSet, split: str) -> Rows:
        rows = read_rows(logit_set, split)
        return dataclasses.replace(rows, texts1=["a b"] * len(rows))

    monkeypatch.setattr(teacher_advice, "read_rows", letters)
    assert "baseline" not in judged_set(opinion_set)["validation"]


@pytest.mark.parametrize("kind", ["score", "bins"])
def test_scores_have_one_too(kind: str, ratings: dict[str, ExampleSet]) -> None:
    """A sentence's score is the number of one of its words, so that a bag of words has nearly all of it."""
    parts = judged_set(ratings[kind])["validation"]
    assert parts["baseline"]["scores"]["pearson"] > 0.9
    assert any("pearson" in line for line in judge(parts))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tasks of three classes that a word decides. Most rows have the first."""
    folder = tmp_path_factory.mktemp("colours")
    words = {"red": "anna", "green": "ben", "blue": "clara"}
    for name in ("colours", "shades"):
        (folder / name).mkdir()
        for split, count in (("train", 60), ("validation", 30)):
            labels = (["red"] * 8 + ["green", "blue"]) * (count // 10)
            rows = [{"text": f"{words[label]} {words[label]} .", "colour": label} for label in labels]
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(
            f"{{name: {name}, type: classification, labels: [red, green, blue], metrics: [accuracy], "
            "columns: {sentence1: text, label: colour}, splits: {train: , validation: }}"
        )
    return folder


@pytest.fixture(scope="module")
def colours(data: Path) -> list[object]:
    """The flags of one of the tasks."""
    return ["--manifest", data / "colours.yaml", "--data", data, "--max-seq-length", 32]


@pytest.mark.parametrize(
    ("label", "num_classes", "expected"),
    [
        ([0, 1, 0, 1], 2, ("accuracy",)),
        ([0, 0, 0, 1], 2, ("accuracy", "macro_f1")),
        ([0, 1, -1, -1], 2, ("accuracy",)),  # two rows without gold
        ([0, 1, 2], 3, ("accuracy", "macro_f1")),
        ([-1], 2, ("accuracy",)),
    ],
)
def test_skewed_and_several_classes_are_judged_by_macro_f1(
    label: list[int], num_classes: int, expected: tuple[str, ...]
) -> None:
    target = Target(kind="classes", names=tuple("abc"[:num_classes]))
    assert baseline.judged_metrics(("accuracy",), target, np.array(label)) == expected


def test_a_fine_tuned_teacher_and_its_set_are_judged_alike(colours: list[object], work: Path, tmp_path: Path) -> None:
    steps = ["--num-train-epochs", 1, "--learning-rate", 1e-2, "--per-device-train-batch-size", 60]
    where = ["--model-name-or-path", work / "bert", "--output-dir", tmp_path / "teacher"]
    done = invoke("finetune-teacher", *colours, *where, *steps, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    scores = found["result"]["best"]["metrics"]["validation"]
    assert scores["labels_in_gold"] > scores["labels_predicted"]
    lines = found["judgements"]
    assert [word for word in ("accuracy", "macro_f1") if any(word in line for line in lines)] == [
        "accuracy",
        "macro_f1",
    ]
    dumped = invoke("teacher-dump", *colours, "--model-name-or-path", tmp_path / "teacher", "--store", tmp_path)
    assert dumped.exit_code == 0, dumped.stderr
    assert all(f"validation: {line}" in dumped.stderr for line in lines)


def test_a_good_teacher_is_shown_beside_the_baseline_by_the_same_metrics(data: Path, tmp_path: Path) -> None:
    words = {"red": "anna", "green": "ben", "blue": "clara"}
    rows = [
        {"text": f"{word} {word} .", "probabilities": {name: float(name == label) for name in words}}
        for label, word in words.items()
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--manifest", data / "colours.yaml", "--data", data, "--store", tmp_path]
    done = invoke("import", tmp_path / "answers.jsonl", *where, "--teacher", "gold")
    assert done.exit_code == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "bag of n-grams" in line]
    assert "accuracy 1.0000 (teacher 1.0000), macro_f1 1.0000 (teacher 1.0000)" in line


def test_teachers_of_several_tasks_are_judged_by_task(data: Path, work: Path, tmp_path: Path) -> None:
    tasks = ["--tasks", f"{data / 'colours.yaml'},{data / 'shades.yaml'}", "--data", data, "--max-seq-length", 32]
    steps = ["--num-train-epochs", 1, "--learning-rate", 1e-2, "--per-device-train-batch-size", 60]
    where = ["--model-name-or-path", work / "bert", "--output-dir", tmp_path / "teachers"]
    done = invoke("finetune-teacher", *tasks, *where, *steps, "--json")
    assert done.exit_code == 0, done.stderr
    lines = json.loads(done.stdout)["judgements"]
    for name in ("colours", "shades"):
        own = " ".join(line for line in lines if line.startswith(f"{name}/validation: "))
        assert "same answer" in own
        assert "macro_f1" in own


def test_a_constant_teacher_is_named_so_whichever_class_it_predicts() -> None:
    parts: dict[str, Any] = {"gold": {}, "teacher": {"accuracy": 1 / 3}, "majority": {"accuracy": 2 / 3}}
    parts["teacher_by_label"] = {
        "bad": {"gold": 20, "predicted": 60, "f1": 0.5},
        "good": {"gold": 40, "predicted": 0, "f1": 0.0},
    }
    (constant,) = judge(parts)
    assert "same answer" in constant
    parts["teacher_by_label"]["bad"]["predicted"] = 30  # of several labels per row
    (silent,) = judge(parts)
    assert "same answer" not in silent
    assert "good" in silent
