"""Students against `tests.helpers.numpy_student`, which reads their files and texts by itself."""

import shutil
from pathlib import Path

import pytest

from pipeline.training.checkpoint import write_tensors
from student.model.student import Student
from student.model.weights import read_weights, save_sharing
from student.predict.predictor import Predictor
from tests.helpers.numpy_student import answer_of


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("opinion", ["The wine wasn't PERFECT, 不 the naïve view!"]),
        ("opinion", ["the food was lovely . " * 20]),
        ("roles", ["anna paid ben .", "ben was paid by Anna."]),
    ],
)
def test_a_student_answers_as_numpy_does(name: str, texts: list[str], request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(f"{name}_run")
    label, probabilities = answer_of(run, *texts)
    [expected] = Predictor(run)(*([text] for text in texts))
    assert label == expected["label"]
    assert probabilities == pytest.approx(expected["probabilities"], abs=1e-5)


def test_a_student_that_shares_its_encoder_answers_as_numpy_does(roles_run: Path, tmp_path: Path) -> None:
    run, student = shutil.copytree(roles_run, tmp_path / "roles"), Student.load(roles_run)
    save_sharing({run: (student.config_json, student)})
    _, probabilities = answer_of(run, "anna paid ben .", "ben was paid by anna .")
    [expected] = Predictor(roles_run)(["anna paid ben ."], ["ben was paid by anna ."])
    assert probabilities == pytest.approx(expected["probabilities"], abs=1e-5)
    write_tensors(run / "encoder.safetensors", read_weights(run, "encoder."), {"epoch": "another"})
    with pytest.raises(AssertionError, match="epoch"):
        answer_of(run, "anna paid ben .", "ben was paid by anna .")
