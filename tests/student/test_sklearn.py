from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from pipeline.errors import ConfigError, DataError, DistillError
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.target import softmax
from pipeline.training.run_record import RUN_RECORD, read_run_record
from student.predict import Predictor
from student.sklearn import StudentClassifier
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
    record = read_run_record(tmp_path / "run" / RUN_RECORD)
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
