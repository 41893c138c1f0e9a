"""What the packages offer by name, and when it is imported."""

import subprocess
import sys

import pytest

import pipeline
import student
from pipeline.logit_set.reader import LogitSet, open_set
from student import functions
from student.model.model import Student
from student.predict import Predictor


def test_the_packages_offer_what_their_modules_hold() -> None:
    assert (student.Predictor, student.Student) == (Predictor, Student)
    assert (pipeline.open_set, pipeline.LogitSet) == (open_set, LogitSet)
    assert student.__all__ == ["Predictor", "Student", "WordPredictor", "evaluate_student", "train_student"]
    assert (student.train_student, student.evaluate_student) == (functions.train_student, functions.evaluate_student)
    assert pipeline.__all__ == ["LogitSet", "open_set"]


@pytest.mark.parametrize("package", [student, pipeline])
def test_nothing_else_is_offered(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Studnet'"):
        package.Studnet  # type: ignore[attr-defined]  # noqa: B018


def test_torch_waits_until_it_is_asked_for_and_answers_need_no_more() -> None:
    asked = "print('torch' in sys.modules)"
    others = "print(sys.modules.keys() & {'triton', 'scipy', 'duckdb', 'accelerate', 'sklearn', 'matplotlib'})"
    program = f"import sys, student, pipeline.cli; {asked}; student.Student; {asked}; student.Predictor; {others}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "True", "set()"]
