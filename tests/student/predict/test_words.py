"""Students of labelled words answer by the engine as torch does: from their folder, their file and their weights."""

import json
import pickle  # noqa: TID251 - what multiprocessing does
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError
from pipeline.file_names import STUDENT_FILE
from student.predict.engine_backend import EngineBackend
from student.predict.multi_task import MultiTaskPredictor
from student.predict.predictor import Predictor
from student.predict.text_answers import Prediction
from student.predict.torch_backend import TorchBackend, logits_of_words
from student.predict.word_answers import WordAnswers
from student.sql_functions import register
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.engine import needs_engine, torch_predictor
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config
from tests.helpers.words import dump_entities, right_teacher, write_random_teacher

pytestmark = needs_engine
SENTENCES = [["Paris", "Hilton", "met", "\u200b", "london"], [], ["georgia", "", "don't"], ["ford"] * 90]
TEXT = "On Monday, Paris Hilton met london in Jordan!"
WITHOUT_TORCH = """
import sys
from distill import Predictor
print([word["label"] for word in Predictor(sys.argv[1])(["Paris met london"])[0]["words"]], "torch" in sys.modules)
"""


def labels(answer: dict[str, Prediction]) -> dict[str, list[str]]:
    """The labels of the words by task."""
    return {task: [word["label"] for word in one["words"]] for task, one in answer.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    write_random_teacher(folder)
    return right_teacher(dump_entities(folder, token_vectors=False)).root.parent


@pytest.fixture(scope="module")
def original(store: Path) -> Path:
    run = store.with_name("run")
    train(tiny_config(store / "right", run, num_train_epochs=8, learning_rate=0.02), "distill train-student")
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A run that may be changed."""
    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture(params=["folder", "file", "weights"])
def predictor(request: pytest.FixtureRequest, run: Path) -> Predictor:
    if request.param == "file":
        return Predictor(run / STUDENT_FILE)
    if request.param == "weights":
        (run / STUDENT_FILE).unlink()
    return Predictor(run)


def test_the_engine_answers_as_torch_does(predictor: Predictor, original: Path) -> None:
    by_torch = torch_predictor(original)
    assert isinstance(predictor.answers, WordAnswers)
    expected_WC = logits_of_words(by_torch.student, by_torch.reader, SENTENCES)
    assert isinstance(by_torch.backend, TorchBackend)
    by_torch.backend.served = None
    assert predictor.backend.is_quick
    np.testing.assert_allclose(predictor.backend.word_logits(SENTENCES), expected_WC, rtol=1e-4, atol=1e-4)
    for answer, expected in zip(predictor([*SENTENCES, TEXT]), by_torch([*SENTENCES, TEXT]), strict=True):
        assert answer["spans"] == expected["spans"]
        probabilities = [[word.pop("probability") for word in one["words"]] for one in (answer, expected)]
        assert answer["words"] == expected["words"]
        assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-4)
    assert predictor.info.model_dump() == predictor.info.model_dump() | by_torch.info.model_dump()
    np.testing.assert_array_equal(predictor.num_tokens([TEXT]), by_torch.num_tokens([TEXT]))
    for name, numbers_N in by_torch.signals([TEXT, SENTENCES[0]]).items():
        np.testing.assert_array_equal(predictor.signals([TEXT, SENTENCES[0]])[name], numbers_N)


def test_there_are_spans(original: Path) -> None:
    """Or the tests here would compare little."""
    answers = Predictor(original)(SENTENCES)
    assert answers[0]["spans"]
    assert {word["label"] for word in answers[0]["words"]} > {"O"}


def test_words_without_tokens_stay_outside_whatever_labels_cost(predictor: Predictor, run: Path) -> None:
    dear = Predictor(run, costs={"B-ORG": 1e9})
    assert [word["label"] for word in dear(SENTENCES[:1])[0]["words"]] == ["B-ORG", "B-ORG", "B-ORG", "O", "B-ORG"]
    assert predictor(SENTENCES[:1])[0]["words"][3]["probability"] == 1.0


def test_torch_is_not_imported(original: Path) -> None:
    for path in (original, original / STUDENT_FILE):
        process = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, path], capture_output=True, text=True, check=True
        )
        assert process.stdout.split()[-1] == "False"


def test_what_is_not_for_words_is_refused(predictor: Predictor, original: Path) -> None:
    with pytest.raises(ConfigError, match=naming("words")):
        predictor.logits([TEXT])
    for path in (original, original / STUDENT_FILE):
        with pytest.raises(ConfigError, match=naming("--abstain")):
            Predictor(path, abstain=True)


def test_a_folder_predictor_has_what_needs_torch_and_travels(run: Path) -> None:
    predictor, by_torch = Predictor(run), torch_predictor(run)
    assert predictor.student.config == by_torch.student.config
    assert predictor.hashes() == by_torch.hashes()
    content, expected = pickle.dumps(predictor), predictor(SENTENCES)
    shutil.rmtree(run)
    assert pickle.loads(content)(SENTENCES) == expected  # noqa: S301


def test_commands_and_queries_take_the_exported_file(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "ner.distill"
    exported = invoke("export", original, "--file", path)
    assert exported.exit_code == 0, exported.output
    expected = Predictor(original)([TEXT])
    assert json.loads(invoke("predict", path, TEXT, "--json").stdout) == expected
    pq.write_table(pa.table({"text": [TEXT, "Paris met me"]}), tmp_path / "in.parquet")
    files = ("--file", tmp_path / "in.parquet", "--output", tmp_path / "out.parquet")
    assert invoke("predict", path, *files).exit_code == 0
    assert pq.read_table(tmp_path / "out.parquet").column("spans").to_pylist()[0] == expected[0]["spans"]
    connection = duckdb.connect()
    register(connection, path)
    query = "select spans($1, $2), predict($1, ['Paris', 'met', 'me'])"
    spans, joined = connection.execute(query, [str(path), TEXT]).fetchall()[0]
    assert spans == expected[0]["spans"]
    assert joined.split(" ") == [word["label"] for word in Predictor(original)([["Paris", "met", "me"]])[0]["words"]]


def test_several_tasks_of_words_have_one_file(store: Path, tmp_path: Path) -> None:
    small = ("--store", store, "--num-train-epochs", "1", "--matrix-size", "3", "--vector-size", "4")
    told = invoke("train-student", "--tasks", "right,entities", *small, "--output-dir", tmp_path / "both")
    assert told.exit_code == 0, told.output
    both = MultiTaskPredictor(tmp_path / "both")
    assert {type(one.backend) for one in both.predictors.values()} == {EngineBackend}
    moved = (tmp_path / "both" / STUDENT_FILE).rename(tmp_path / "both.distill")
    by_file, by_weights = MultiTaskPredictor(moved), MultiTaskPredictor(tmp_path / "both")
    assert {type(one.backend) for one in by_file.predictors.values()} == {EngineBackend}
    assert {type(one.backend) for one in by_weights.predictors.values()} == {TorchBackend}
    assert by_file([TEXT]) == both([TEXT])
    assert labels(by_weights([TEXT])[0]) == labels(both([TEXT])[0])
