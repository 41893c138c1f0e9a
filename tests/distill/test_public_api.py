"""What ``import distill`` offers by name, and when it is imported."""

import inspect
import subprocess
import sys

import pytest

import distill
from distill.commands import ALL, FUNCTIONS, load
from pipeline.sets.kinds import KINDS
from pipeline.sets.open import ExampleSet, LogitSet, open_set
from student.model.student import Student
from student.predict.predictor import Predictor
from tests.helpers.api_stub import STUB, stub


def test_every_command_is_a_function_and_the_objects_are_those_of_their_modules() -> None:
    assert (distill.Predictor, distill.Student) == (Predictor, Student)
    assert (distill.open_set, distill.LogitSet, distill.ExampleSet) == (open_set, LogitSet, ExampleSet)
    classes = [distill.ExampleSet, distill.MaskedWordSet, distill.SentenceSet, distill.TokenLabelSet]
    assert all(issubclass(one, LogitSet) for one in classes)
    assert len(classes) == len(KINDS)
    assert sorted(distill.__all__) == list(distill.__all__)
    assert {getattr(distill, name) for name in FUNCTIONS} == {load(name) for name in FUNCTIONS}
    assert set(FUNCTIONS) < set(distill.__all__) <= set(dir(distill))


def test_editors_see_the_functions_as_they_are() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "a flag or a help text has changed: run `make api`"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_list_of_commands_has_the_first_line_of_each_docstring(name: str) -> None:
    assert str(inspect.getdoc(load(name))).splitlines()[0] == ALL[FUNCTIONS[name]].help


def test_nothing_else_is_offered() -> None:
    with pytest.raises(AttributeError, match="Studnet"):
        distill.Studnet  # type: ignore[attr-defined]  # noqa: B018


def test_torch_waits_until_it_is_asked_for_and_answers_need_no_more() -> None:
    asked = "print('torch' in sys.modules)"
    others = "print(sys.modules.keys() & {'triton', 'scipy', 'duckdb', 'accelerate', 'sklearn', 'matplotlib'})"
    commands = "[getattr(distill, name) for name in distill.__all__ if name.islower() and name != 'open_set']"
    training = "import student.fit; print('scipy.stats' in sys.modules)"  # which takes more than a second
    predicting = f"{asked}; distill.Student; {asked}; distill.Predictor; {others}"
    program = f"import sys, distill; {commands}; {predicting}; {training}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "True", "set()", "False"]
