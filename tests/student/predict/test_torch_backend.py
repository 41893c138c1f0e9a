"""A run's folder: which students the engine answers for, and that torch answers alike where it does not."""

import pickle  # noqa: TID251 - what multiprocessing does
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipeline.file_names import TOKENIZER_FILE
from pipeline.files import write_text
from pipeline.text.tokenizer import tokenizer_sha256
from student.export.export import with_small_tables
from student.model.student import Student
from student.predict.predictor import Predictor
from student.predict.torch_backend import TorchBackend
from tests.helpers.engine import OF_TEXTS, ROWS, SHAPE, folder_by_torch, inputs, made, needs_engine, torch_predictor
from tests.helpers.tokenizers import VARIANTS
from tests.helpers.toy_students import lstm_student, student


def opened(student: Student, tokenizer: Tokenizer, folder: Path) -> Predictor:
    """The student from its folder."""
    write_text(folder / TOKENIZER_FILE, tokenizer.to_str())
    student.config = student.config.model_copy(update={"tokenizer_sha256": tokenizer_sha256(tokenizer.to_str())})
    student.save(folder)
    return torch_predictor(folder)


@needs_engine
@pytest.mark.parametrize("name", OF_TEXTS)
def test_the_engine_answers_as_torch_does(name: str, tmp_path: Path) -> None:
    predictor, texts = opened(*made(name), tmp_path), inputs(name, ROWS)
    assert predictor.backend.is_quick
    np.testing.assert_allclose(predictor.logits(*texts), folder_by_torch(predictor, *texts), rtol=1e-4, atol=1e-4)
    travelled = pickle.loads(pickle.dumps(predictor))  # noqa: S301
    np.testing.assert_array_equal(travelled.logits(*texts), predictor.logits(*texts))


@pytest.mark.parametrize(
    "other",
    [
        lstm_student("lstm", **SHAPE),
        student(**SHAPE, head="cnn", matrix_size=4, vector_size=16),
        student(**SHAPE, head="bilstm", hidden_size=4),
        with_small_tables(made("hybrid")[0], "int8"),
        with_small_tables(made("hybrid")[0], "float16"),
    ],
    ids=["LSTM", "head cnn", "head bilstm", "int8", "float16"],
)
def test_torch_answers_for_others(other: Student, tmp_path: Path) -> None:
    predictor, texts = opened(other, VARIANTS["uncased"](), tmp_path), ["the a", "", "b"]
    assert not predictor.backend.is_quick
    np.testing.assert_allclose(predictor.logits(texts), folder_by_torch(predictor, texts), atol=1e-5)
    assert predictor.encode(texts).shape == (3, predictor.student.encoder.size)


def test_a_tokenizer_that_the_engine_does_not_read_takes_torch(tmp_path: Path) -> None:
    backend = opened(student(**SHAPE), VARIANTS["added normal"](), tmp_path).backend
    assert isinstance(backend, TorchBackend)
    assert backend.engine is None


def test_a_gpu_takes_torch(tmp_path: Path) -> None:
    predictor = opened(*made("hybrid"), tmp_path)
    predictor.logits(["the a"])
    predictor.student.to("meta")  # as a GPU's, these tensors are not in this machine's memory
    assert isinstance(predictor.backend, TorchBackend)
    assert predictor.backend.engine is None


def test_the_torch_module_stays_when_the_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    predictor = opened(*made("hybrid"), tmp_path / "run")
    logits_NC = predictor.logits(["the a"])
    shutil.rmtree(tmp_path / "run")  # as of a fitted classifier, or of `bench` without a run
    np.testing.assert_allclose(folder_by_torch(predictor, ["the a"]), logits_NC, rtol=1e-4, atol=1e-4)
