"""What ``import distill`` offers by name, and when it is imported."""

import subprocess
import sys

import pytest

import distill
from distill import students, teachers
from pipeline.sets.reader import LogitSet, open_set
from student.model.model import Student
from student.predict import Predictor


def test_the_package_offers_what_its_modules_hold() -> None:
    assert (distill.Predictor, distill.Student) == (Predictor, Student)
    assert (distill.open_set, distill.LogitSet) == (open_set, LogitSet)
    assert (distill.train_student, distill.evaluate_student) == (students.train_student, students.evaluate_student)
    assert (distill.dump_teacher, distill.finetune_teacher) == (teachers.dump_teacher, teachers.finetune_teacher)
    assert sorted(distill.__all__) == distill.__all__


def test_nothing_else_is_offered() -> None:
    with pytest.raises(AttributeError, match="Studnet"):
        distill.Studnet  # noqa: B018


def test_torch_waits_until_it_is_asked_for_and_answers_need_no_more() -> None:
    asked = "print('torch' in sys.modules)"
    others = "print(sys.modules.keys() & {'triton', 'scipy', 'duckdb', 'accelerate', 'sklearn', 'matplotlib'})"
    program = f"import sys, distill, distill.commands; {asked}; distill.Student; {asked}; distill.Predictor; {others}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "True", "set()"]
