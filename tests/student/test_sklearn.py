import pickle  # noqa: TID251 - how scikit-learn keeps models
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from pipeline.errors import ConfigError, DataError, DistillError
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import read_work_record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import softmax
from student.predict.predictor import Predictor
from student.sklearn import StudentClassifier, classes_as
from tests.helpers.messages import naming

FLAGS = {"matrix_size": 3, "vector_size": 5, "hidden_size": 8, "num_train_epochs": 1, "learning_rate": 0.01}
CHECKS = (  # those that need no numbers
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.mark.parametrize("name", CHECKS)
def test_it_is_an_estimator(name: str) -> None:
    """A check raises what is wrong, and leaves the estimator as it was: without a student, its parameters untouched."""
    model = StudentClassifier(flags=FLAGS)
    getattr(estimator_checks, name)("StudentClassifier", model)
    assert vars(model) == vars(StudentClassifier(flags=FLAGS))


def texts(logit_set: ExampleSet, split: str = "train", most: int = 40) -> list[Any]:
    """The first texts of a split, pairs of those of a task of pairs."""
    names = ("sentence1", "sentence2")[: 1 + logit_set.record.is_pair]
    columns = [logit_set.read(split, (name,)).column(name).to_pylist()[:most] for name in names]
    return columns[0] if len(names) == 1 else list(zip(*columns, strict=True))


def test_it_learns_from_the_rows_with_these_texts(opinion_set: ExampleSet, tmp_path: Path) -> None:
    some = texts(opinion_set)
    model = StudentClassifier(opinion_set.root, FLAGS, tmp_path / "run").fit(some)
    record = read_work_record(tmp_path / "run" / RUN_RECORD)
    rows = opinion_set.read("train", ("source_row", "sentence1"), "variant = 0").to_pylist()
    assert record["settings"]["rows"] == sum(row["sentence1"] in some for row in rows) < len(rows)
    dev = texts(opinion_set, "validation")
    expected_NC = softmax(Predictor(tmp_path / "run").logits(dev))
    np.testing.assert_allclose(model.predict_proba(dev), expected_NC, atol=1e-6)
    assert model.classes_.tolist() == list(opinion_set.record.target.names)
    assert model.predict(dev).tolist() == [model.classes_[k] for k in expected_NC.argmax(axis=1)]
    again = StudentClassifier.of_run(tmp_path / "run")
    np.testing.assert_array_equal(again.predict_proba(dev), model.predict_proba(dev))
    assert model.score(dev, model.predict(dev)) == 1


def test_pairs_in_a_pipeline_and_in_folds_of_clones(roles_set: ExampleSet) -> None:
    pairs = np.array(texts(roles_set))
    steps = [("same", FunctionTransformer()), ("student", StudentClassifier(roles_set.root, FLAGS))]
    pipeline = clone(Pipeline(steps))
    gold = np.array(["no", "yes"] * (len(pairs) // 2))
    proba_NC = cross_val_predict(pipeline, pairs, gold, cv=2, method="predict_proba")
    assert proba_NC.shape == (len(pairs), 2)
    np.testing.assert_allclose(proba_NC.sum(axis=1), 1, atol=1e-5)
    with pytest.raises(NotFittedError):
        pipeline[-1].predict(pairs)


def test_what_the_teacher_was_not_asked_about_is_named(opinion_set: ExampleSet, roles_set: ExampleSet) -> None:
    model = StudentClassifier(opinion_set.root, FLAGS)
    with pytest.raises(DataError, match=naming("store/opinion: ", "'never seen'")):
        model.fit([texts(opinion_set)[0], "never seen"])
    with pytest.raises(ConfigError, match=naming("fit: ", "store/opinion")):
        model.fit(texts(roles_set))
    with pytest.raises(ConfigError, match="string"):
        model.fit("never seen")
    with pytest.raises(ConfigError, match=naming("--task NAME", "--set SET")):
        StudentClassifier().fit()


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (["a", None], DataError, naming("row 1", "None")),
        ([("a", "b"), "c"], DataError, naming("row 1", "'c'")),
        ([("a", "b", "c")], DataError, naming("row 0", "('a', 'b', 'c')")),
        (pa.table({"text": ["a"]}), ConfigError, "column"),
    ],
)
def test_what_is_no_text_is_told(rows: Any, kind: type[DistillError], message: str, opinion_run: Path) -> None:
    with pytest.raises(kind, match=message):
        StudentClassifier.of_run(opinion_run).predict(rows)


def test_a_column_is_a_list_of_texts(opinion_run: Path) -> None:
    model = StudentClassifier.of_run(opinion_run)
    column: Any = np.array(["good .", "bad ."])
    assert (model.predict(column) == model.predict(["good .", "bad ."])).all()


GOLDS: dict[str, Callable[[list[int]], Any]] = {
    "int": list,
    "float": lambda gold: [float(label) for label in gold],
    "bool": lambda gold: [bool(label) for label in gold],
    "numpy int8": lambda gold: np.array(gold, dtype=np.int8),
    "numpy bool": lambda gold: np.array(gold, dtype=bool),
    "pandas": lambda gold: pd.Series(gold, index=range(5, 5 + len(gold))),
    "numpy float, a list": lambda gold: list(np.array(gold, dtype=np.float32)),
}


def labelled(logit_set: ExampleSet) -> tuple[list[str], list[int]]:
    """Different texts of a set, and the numbers of their labels."""
    rows = logit_set.read("train", ("sentence1", "label"), "variant = 0").to_pylist()
    gold = {row["sentence1"]: row["label"] for row in rows}
    return list(gold)[:40], list(gold.values())[:40]


@pytest.mark.parametrize("kind", GOLDS)
def test_gold_in_numbers_gives_answers_in_numbers(kind: str, opinion_set: ExampleSet, opinion_run: Path) -> None:
    sentences, labels = labelled(opinion_set)
    gold = GOLDS[kind](labels)
    classes = classes_as(gold, opinion_set.record.target.names)
    assert classes.tolist() == [0, 1]
    assert classes.dtype.kind == np.asarray(gold).dtype.kind
    model = StudentClassifier.of_run(opinion_run)
    model.classes_ = classes
    p_NC = model.predict_proba(sentences)
    assert model.score(sentences, gold) == pytest.approx((p_NC.argmax(axis=1) == np.array(labels)).mean())


def test_folds_and_grids_with_gold_in_numbers(opinion_set: ExampleSet) -> None:
    sentences, gold = labelled(opinion_set)
    model = StudentClassifier(opinion_set.root, FLAGS)
    scores = cross_val_score(model, sentences, gold, cv=2, scoring="f1", error_score="raise")
    assert np.isfinite(scores).all()
    grid = GridSearchCV(model, {"flags": [FLAGS, FLAGS | {"seed": 1}]}, cv=2, error_score="raise")
    grid.fit(np.array(sentences), np.array(gold))
    assert grid.best_params_["flags"] in (FLAGS, FLAGS | {"seed": 1})
    assert grid.classes_.tolist() == [0, 1]
    assert set(grid.predict(sentences)) <= {0, 1}
    again = pickle.loads(pickle.dumps(grid))  # noqa: S301
    assert (again.predict(sentences) == grid.predict(sentences)).all()


@pytest.mark.parametrize(
    ("gold", "names", "row"),
    [
        (["good", "fine"], ("bad", "good"), 1),
        ([0, 2], ("bad", "good"), 1),
        ([-1, 0], ("bad", "good"), 0),
        ([0, float("nan")], ("bad", "good"), 1),
        ([0, None], ("bad", "good"), 1),
        (["bad", 0], ("bad", "good"), 0),
        ([0.5], ("bad", "good"), 0),
        ([True], ("a", "b", "c"), 0),
        ([True, 0], ("bad", "good"), 0),
        ([0], ("1", "2"), 0),
        ([[0], [1]], ("bad", "good"), 0),
    ],
)
def test_gold_that_is_no_label_is_refused_with_its_row(gold: Any, names: tuple[str, ...], row: int) -> None:
    with pytest.raises(DataError, match=naming(f"y: row {row} ")):
        classes_as(gold, names)


def test_names_that_are_numbers_are_meant_by_numbers() -> None:
    assert classes_as([1, 3], ("1", "2", "3")).tolist() == [1, 2, 3]
    assert classes_as(["1", "3"], ("1", "2", "3")).tolist() == ["1", "2", "3"]
    assert classes_as(None, ("bad", "good")).tolist() == ["bad", "good"]


def test_gold_of_another_length_is_refused(opinion_set: ExampleSet) -> None:
    sentences, gold = labelled(opinion_set)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        StudentClassifier(opinion_set.root, FLAGS).fit(sentences, gold[:-1])
