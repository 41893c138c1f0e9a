"""Answers in NumPy's files, and numbers in, logits out: hand-computed, and as a property of every distribution."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError, DistillError
from pipeline.tasks.target import softmax
from pipeline.tasks.task import load_task
from teacher.imported.answer_rows import FLOOR, Answers, read_answers, to_logits, wrong_numbers
from teacher.imported.import_settings import AnswersFile, AnswersKind
from tests.helpers.messages import naming
from tests.helpers.multilabel import write_topics

LOGITS = np.array([[2.0, -1.0], [0.5, 0.25], [-3.0, 1.5]], np.float16)
KEYS: dict[str, Any] = {"split": "train", "source_row": np.array([2, 0, 1])}


def answers(path: Path, **flags: Any) -> Answers:
    return read_answers(AnswersFile.from_flags(file=path, task="rte", teacher="any", **flags), load_task("rte"))


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "answers.npz", **arrays)
    return folder / "answers.npz"


def test_named_arrays_are_columns(tmp_path: Path) -> None:
    found = answers(saved(tmp_path, logits=LOGITS, **KEYS))
    assert found.table.select(["split", "source_row"]).to_pydict() == {"split": ["train"] * 3, "source_row": [2, 0, 1]}
    assert (found.kind, found.labels) == ("logits", ("entailment", "not_entailment"))
    assert np.array_equal(found.logits_WC, LOGITS.astype(np.float32))


def test_fields_of_one_array_are_columns(tmp_path: Path) -> None:
    rows = np.array([("a", "b", [0.25, 0.75])], [("sentence1", "U9"), ("sentence2", "S9"), ("probabilities", "f8", 2)])
    np.save(tmp_path / "ANSWERS.NPY", rows)
    (tmp_path / "ANSWERS.NPY.npy").rename(tmp_path / "ANSWERS.NPY")
    found = answers(tmp_path / "ANSWERS.NPY")
    assert found.table.column("sentence2").to_pylist() == ["b"]
    assert np.allclose(np.exp(found.logits_WC), [[0.25, 0.75]])


def test_the_names_of_outputs_give_their_order(tmp_path: Path) -> None:
    path = saved(tmp_path, logits=LOGITS, labels=np.array(["Not_Entailment", "entailment"]), **KEYS)
    assert np.array_equal(answers(path).logits_WC, LOGITS[:, ::-1].astype(np.float32))
    stated = answers(path, teacher_labels="entailment,not_entailment")  # goes before
    assert np.array_equal(stated.logits_WC, LOGITS.astype(np.float32))
    with pytest.raises(ConfigError, match=naming("answers.npz", "LABEL_0", "--teacher-labels")):
        answers(saved(tmp_path, logits=LOGITS, labels=np.array(["LABEL_0", "LABEL_1"]), **KEYS))


@pytest.mark.parametrize(
    ("arrays", "words", "kind"),
    [
        ({"logits": LOGITS, "split": "train", "source_row": [1, 2]}, ("logits (3, 2)", "source_row (2,)"), DataError),
        ({"logits": np.array([{"a": 1}, None])}, ("pickle",), DataError),
        ({"logits": LOGITS[None], "split": ["train"]}, ("'logits'", "3 dimensions"), DataError),
        ({"logits": LOGITS, "sentence1": np.array([b"a", b"b", b"\xff"])}, ("'sentence1'", "UTF-8"), DataError),
        ({"logits": LOGITS * np.nan, **KEYS}, ("rows 0, 1, 2", "nan"), DataError),
        ({"logits": LOGITS[:, :1], **KEYS}, ("rows 0, 1, 2", "1 numbers"), DataError),
        ({"outputs": LOGITS, **KEYS}, ("logits", "outputs"), ConfigError),
        ({}, ("none",), DataError),
    ],
)
def test_arrays_that_are_no_answers(
    arrays: dict[str, Any], words: tuple[str, ...], kind: type[DistillError], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=naming("answers.npz", *words)):
        answers(saved(tmp_path, **arrays))


def test_files_that_are_no_named_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "bare.npy", LOGITS)
    with pytest.raises(DataError, match=naming("bare.npy", "without names", "np.savez")):
        answers(tmp_path / "bare.npy")
    whole = saved(tmp_path, logits=LOGITS).read_bytes()
    contents = {
        "cut": whole[:-40],
        "other": b"text",
        "empty": b"",
        "lfs": b"version https://git-lfs.github.com/spec/v1\n",
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match=naming(f"{name}.npz")):
            answers(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match=naming("gone.npz", "no such file")):
        answers(tmp_path / "gone.npz")


def written(folder: Path, *values: Any, column: str = "label", task: str = "rte", **flags: Any) -> Answers:
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps({column: value}) + "\n" for value in values))
    return read_answers(AnswersFile.from_flags(file=path, task=task, teacher="any", **flags), load_task(task))


def test_a_score_beside_a_label_is_ignored_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"label": "entailment", "score": 0.7}) + "\n")
    found = read_answers(AnswersFile.from_flags(file=path, task="rte", teacher="any"), load_task("rte"))
    assert np.exp(found.logits_WC)[0, 0] == pytest.approx(1)
    assert "answers.jsonl" in (told := capsys.readouterr().err)
    assert "--rest spread" in told


@pytest.mark.parametrize("column", ["label", "labels"])
def test_a_bare_label_has_a_probability_of_one(column: str, tmp_path: Path) -> None:
    for values in (("entailment", "Not_Entailment", None), (0, 1, None), (["entailment"], ["not_entailment"], None)):
        found = written(tmp_path, *values, column=column)
        assert (found.kind, found.row_A.tolist()) == ("label", [0, 1])
        assert np.exp(found.logits_WC) == pytest.approx(np.array([[1, FLOOR], [FLOOR, 1]]))
    assert np.exp(written(tmp_path, 0, teacher_labels="not_entailment,entailment").logits_WC)[0, 1] == 1


def test_each_label_of_a_list_has_a_probability_of_one(tmp_path: Path) -> None:
    task = load_task(manifest=write_topics(tmp_path, ["a"]))
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"labels": [task.labels[1], task.labels[0]]}) + '\n{"labels": []}\n')
    found = read_answers(AnswersFile.from_flags(file=path, manifest=tmp_path / "topics.yaml", teacher="any"), task)
    assert (found.logits_WC > 0).tolist() == [
        [True, True] + [False] * (len(task.labels) - 2),
        [False] * len(task.labels),
    ]


def test_scores_by_name_are_probabilities(tmp_path: Path) -> None:
    found = written(tmp_path, {"not_entailment": 0.75, "entailment": 0.25}, column="scores")
    assert found.kind == "probabilities"
    assert np.exp(found.logits_WC) == pytest.approx(of(0.25, 0.75))


def test_numbers_come_before_labels_which_may_be_gold(tmp_path: Path) -> None:
    path = saved(tmp_path, logits=LOGITS, label=[1, 1, 1], **KEYS)
    assert answers(path).kind == "logits"
    assert answers(path, answers="label").kind == "label"


@pytest.mark.parametrize(
    ("value", "column", "task", "kind", "words"),
    [
        ("maybe", "label", "rte", DataError, ("row 0", "'maybe'", "entailment")),
        (["entailment", "not_entailment"], "label", "rte", DataError, ("row 0", "multilabel")),
        ("entailment", "probabilities", "rte", DataError, ("row 0", "'entailment'", "`label`")),
        ({"entailment": 9, "not_entailment": 1}, "scores", "rte", DataError, ("row 0", "10", "`logits`")),
        (0.9, "score", "rte", ConfigError, ("'score'", "`label`", "`probabilities`")),
        (4.5, "label", "stsb", ConfigError, ("'label'", "`score`")),
    ],
)
def test_what_is_no_answer_is_told_with_what_to_do(
    value: Any, column: str, task: str, kind: type[DistillError], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(kind, match=naming("answers.jsonl", *words)):
        written(tmp_path, value, column=column, task=task)


NAMES = ("a", "b", "c")
GAP = float("nan")


def of(*numbers: float) -> np.ndarray:
    return np.array([numbers], dtype=np.float64)


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=6))
def test_the_softmax_of_the_logits_are_the_probabilities(weights: list[float]) -> None:
    probability_1C = of(*weights) / sum(weights)
    told: dict[AnswersKind, np.ndarray] = {"probabilities": probability_1C, "logprobs": np.log(probability_1C)}
    for kind, numbers_1C in told.items():
        assert wrong_numbers(kind, numbers_1C, "abcdef", may_spread=False) == {}
        assert softmax(to_logits(kind, numbers_1C)) == pytest.approx(probability_1C, abs=1e-5)


def test_logits_and_scores_stay_as_they_are() -> None:
    assert to_logits("logits", of(-3.5, 0, 12)).tolist() == [[-3.5, 0, 12]]
    assert to_logits("score", of(4.25)).tolist() == [[4.25]]


def test_nothing_is_impossible() -> None:
    assert to_logits("probabilities", of(1, 0, 0)) == pytest.approx(np.log(of(1, FLOOR, FLOOR)), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "numbers"), [("probabilities", (0.7, GAP, GAP)), ("logprobs", (np.log(0.7), GAP, GAP))]
)
def test_labels_that_are_not_named_share_what_is_left(kind: AnswersKind, numbers: tuple[float, ...]) -> None:
    assert softmax(to_logits(kind, of(*numbers))) == pytest.approx(of(0.7, 0.15, 0.15), abs=1e-6)


def test_of_labels_that_are_all_unlikely_the_likeliest_is_the_answer() -> None:
    assert softmax(to_logits("logprobs", of(-40, -41, -60)))[0, :2] == pytest.approx([0.7311, 0.2689], abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "numbers", "may_spread", "problem"),
    [
        ("logits", (1, GAP, 2), True, "no number for b"),
        ("probabilities", (0.5, GAP, GAP), False, "no number for b, c. Use --rest spread"),
        ("logprobs", (-0.5, -2, GAP), False, "no number for c. Use --rest spread"),
        ("probabilities", (0.5, 0.3, 0.1), False, "0.9"),
        ("probabilities", (0.9, 0.9, GAP), True, "1.8"),
        ("probabilities", (1.2, -0.2, 0), False, "probabilities"),
        ("logprobs", (0.3, -9, -9), False, "logprobs"),
        ("logprobs", (900, -9, -9), False, "logprobs"),
    ],
)
def test_what_cannot_be_meant_is_told(
    kind: AnswersKind, numbers: tuple[float, ...], may_spread: bool, problem: str
) -> None:
    whole = of(0.2, 0.3, 0.5) if kind == "probabilities" else np.log(of(0.2, 0.3, 0.5))
    wrong = wrong_numbers(kind, np.concatenate([whole, of(*numbers)]), NAMES, may_spread)
    assert wrong.keys() == {1}
    assert problem in wrong[1]


def test_rounded_probabilities_are_let_through() -> None:
    assert wrong_numbers("probabilities", of(0.33, 0.33, 0.33), NAMES, may_spread=False) == {}
