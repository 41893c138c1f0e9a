"""What users of Python do with a predictor: send it elsewhere, and call it with any container of texts."""

import copy
import os
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import distill
from pipeline.errors import ConfigError, DataError, DistillError
from student.model.student import Student
from student.predict.predictor import Predictor
from tests.helpers.formats import FOLDER
from tests.helpers.messages import naming

TEXTS = ["the food was lovely .", "", "the wine was 不 awful ."]
PAIRS = [("anna paid ben .", "ben was paid by anna ."), ("", "anna")]
RUNS = ["run", "run-int8", "run-pairs"]  # the last with vectors of bigrams


def by_joblib(predictor: Predictor, folder: Path) -> Any:
    joblib.dump(predictor, folder / "predictor.joblib")
    return joblib.load(folder / "predictor.joblib")


WAYS: dict[str, Callable[[Predictor, Path], Any]] = {
    "pickle": lambda predictor, _: pickle.loads(pickle.dumps(predictor)),  # noqa: S301
    "deepcopy": lambda predictor, _: copy.deepcopy(predictor),
    "joblib": by_joblib,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RUNS)
def test_a_predictor_travels_without_its_folder(name: str, way: str, tmp_path: Path) -> None:
    run = shutil.copytree(FOLDER / name, tmp_path / "run")
    predictor = Predictor(run)
    expected_NC = predictor.logits(TEXTS)
    shutil.rmtree(run)
    other = WAYS[way](predictor, tmp_path)
    assert type(other) is type(predictor)
    np.testing.assert_array_equal(other.logits(TEXTS), expected_NC)
    np.testing.assert_array_equal(predictor.logits(TEXTS), expected_NC)
    assert (other.backend.is_quick, other.threshold) == (predictor.backend.is_quick, predictor.threshold)


def test_what_travels_is_as_large_as_the_weights(tmp_path: Path) -> None:
    predictor = Predictor(FOLDER / "run")
    weights = sum(weight.nbytes for weight in predictor.student.state_dict().values())
    companions = sum(map(len, predictor.student.companions.values()))
    assert len(pickle.dumps(predictor)) < 1.2 * weights + 3 * companions + 50_000


def test_students_themselves_can_be_pickled() -> None:
    for name in RUNS:
        student = Student.from_pretrained(FOLDER / name)
        other = pickle.loads(pickle.dumps(student))  # noqa: S301
        assert other.config == student.config


def test_another_process_answers_alike() -> None:
    predictor = Predictor(FOLDER / "run")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        there_NC = pool.submit(predictor.logits, TEXTS).result(timeout=120)
    np.testing.assert_allclose(there_NC, predictor.logits(TEXTS), atol=1e-5)


FORKED = """
import multiprocessing, sys, torch
from student.predict.predictor import Predictor

def answered(predictor):
    return predictor(["a"]), torch.ones(10**6).sum().item(), torch.get_num_threads()

predictor = Predictor(sys.argv[1])
predictor(["a"])
torch.ones(10**6).sum()  # starts the threads of OpenMP, which a fork does not copy
with multiprocessing.get_context("fork").Pool(1) as pool:
    there = pool.apply_async(answered, (predictor,)).get(60)
assert there == (predictor(["a"]), 10**6, 1), there
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_forked_process_answers() -> None:
    arguments = [sys.executable, "-c", FORKED, str(FOLDER / "run")]
    done = subprocess.run(arguments, env=os.environ | {"OMP_NUM_THREADS": "2"}, check=True, timeout=120)
    assert done.returncode == 0


def columns(texts: list[str]) -> Iterator[Any]:
    yield tuple(texts)
    yield np.array(texts)
    yield np.array(texts, dtype=object)
    yield [np.str_(text) for text in texts]
    yield pd.Series(texts, index=range(7, 7 + len(texts)))
    yield pd.Series(texts, dtype="string")
    yield pd.Series(texts, dtype="category")
    yield pd.Index(texts)
    yield pa.array(texts)
    yield pa.chunked_array([texts[:1], texts[1:]])
    yield pa.array(texts).dictionary_encode()
    yield iter(texts)
    yield (text for text in texts)
    yield dict.fromkeys(texts).keys()


def test_texts_may_be_in_anything_that_has_an_order() -> None:
    predictor = Predictor(FOLDER / "run")
    expected_NC, labels, vectors_NF = predictor.logits(TEXTS), predictor(TEXTS), predictor.encode(TEXTS)
    for one, two, three, four in zip(*(columns(TEXTS) for _ in range(4)), strict=True):
        np.testing.assert_array_equal(predictor.logits(one), expected_NC)
        assert predictor(two) == labels
        np.testing.assert_array_equal(predictor.encode(three), vectors_NF)
        assert predictor.explain(four) == predictor.explain(TEXTS)


def test_pairs_may_be_two_columns_or_one_of_pairs(roles_run: Path) -> None:
    predictor = Predictor(roles_run)
    first, second = map(list, zip(*PAIRS, strict=True))
    expected_NC = predictor.logits(first, second)
    for pairs in (PAIRS, [*map(list, PAIRS)], np.array(PAIRS), iter(PAIRS), [*map(pd.Series, PAIRS)]):
        np.testing.assert_array_equal(predictor.logits(pairs), expected_NC)
    np.testing.assert_array_equal(predictor.logits(pd.Series(first), iter(second)), expected_NC)
    with pytest.raises(DataError, match=naming("sentence 1", "'c'")):
        predictor.logits([("a", "b"), "c"])
    with pytest.raises(ConfigError):
        predictor.logits(first)
    with pytest.raises(ConfigError):
        predictor.logits(first, second[:1])


@pytest.mark.parametrize(
    ("texts", "kind", "shown"),
    [
        ("one", ConfigError, "string"),
        (b"one", ConfigError, "string"),
        (None, ConfigError, "NoneType"),
        (3, ConfigError, "int"),
        ({"a", "b"}, ConfigError, "set"),
        ({"a": 1}, ConfigError, "dict"),
        (pd.DataFrame({"text": ["a"]}), ConfigError, "column"),
        (["a", None], DataError, "sentence 1"),
        (["a", float("nan")], DataError, "sentence 1"),
        (["a", "b", b"c"], DataError, "sentence 2"),
        ([1, 2], DataError, "sentence 0"),
        (np.array([1.0]), DataError, "sentence 0"),
        (pd.Series(["a", None]), DataError, "sentence 1"),
        (pd.Series(["a", pd.NA], dtype="string"), DataError, "sentence 1"),
        (pa.array(["a", None]), DataError, "sentence 1"),
        ([["a"]], DataError, "sentence 0"),
        (["\ud800"], DataError, "sentence 0"),
    ],
)
def test_what_is_no_text_is_refused_with_its_position(texts: Any, kind: type[DistillError], shown: str) -> None:
    predictor = Predictor(FOLDER / "run")
    for ask in (predictor, predictor.logits, predictor.columns, predictor.encode):
        with pytest.raises(kind, match=shown):
            ask(texts)


def test_no_inputs_have_no_answers(roles_run: Path, opinion_run: Path) -> None:
    for run in (roles_run, opinion_run):
        predictor = Predictor(run)
        assert predictor([]) == predictor.explain([]) == predictor(iter(())) == []
        assert predictor.logits(np.array([])).shape == (0, 2)
        assert predictor.columns([])["label"].to_pylist() == []
    assert Predictor(roles_run)([], []) == []


def test_a_long_value_that_is_no_text_is_shortened(roles_run: Path) -> None:
    long = {"text": "x" * 10_000}
    for predictor, rows in ((Predictor(FOLDER / "run"), ["a", long]), (Predictor(roles_run), [("a", "b"), long])):
        with pytest.raises(DataError) as error:
            predictor(rows)
        assert "1 (from 0)" in str(error.value)
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("column", [pd.Series, np.array, pa.array, pd.Index])
@pytest.mark.parametrize("count", [1, 2])
def test_a_keyword_with_several_values_takes_a_column(column: Any, count: int) -> None:
    texts = ["anna paid ben .", "good"][:count]
    expected = distill.predict(str(FOLDER / "run"), texts).values
    assert distill.predict(str(FOLDER / "run"), column(texts)).values == expected
    with pytest.raises(ConfigError, match="abstain"):
        distill.predict(str(FOLDER / "run"), texts, abstain=column([True] * count))
    with pytest.raises(ConfigError, match="texts"):
        distill.predict(str(FOLDER / "run"), pd.DataFrame({"text": texts}))
