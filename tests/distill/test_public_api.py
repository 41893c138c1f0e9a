"""What ``import distill`` offers by name, and when it is imported."""

import ast
import inspect
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import distill
from distill.commands import FUNCTIONS, GONE, app, load
from distill.commands.stub import stub
from pipeline.sets.kinds import open_set
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.open import LogitSet
from pipeline.sets.registry import FORMATS
from student.model.student import Student
from student.predict.predictor import Predictor


def test_every_command_is_a_function_and_the_objects_are_those_of_their_modules() -> None:
    assert (distill.Predictor, distill.Student) == (Predictor, Student)
    assert (distill.open_set, distill.LogitSet, distill.ExampleSet) == (open_set, LogitSet, ExampleSet)
    classes = [distill.ExampleSet, distill.MaskedWordSet, distill.SentenceSet, distill.TokenLabelSet]
    assert all(issubclass(one, LogitSet) for one in classes)
    assert len(classes) == len(FORMATS)
    assert sorted(distill.__all__) == list(distill.__all__)
    assert {getattr(distill, name) for name in FUNCTIONS} == {load(name) for name in FUNCTIONS}
    assert set(FUNCTIONS) < set(distill.__all__) <= set(dir(distill))


def test_editors_see_the_functions_as_they_are() -> None:
    shown = {node.name: node for node in ast.parse(stub()).body if isinstance(node, ast.FunctionDef)}
    assert shown.keys() == FUNCTIONS.keys()
    for name, node in shown.items():
        parameters = inspect.signature(load(name)).parameters
        assert [one.arg for one in (*node.args.args, *node.args.kwonlyargs)] == list(parameters)
        assert ast.get_docstring(node) == inspect.getdoc(load(name))


def test_a_command_that_is_gone_names_its_new_spelling() -> None:
    for name in GONE.keys() - set(FUNCTIONS.values()):
        result = CliRunner().invoke(app, [name, "--help"])
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"error: {name}: no longer a command. Use `distill {GONE[name]}`.\n"
        with pytest.raises(AttributeError, match=f"distill.{name}: no longer a command"):
            getattr(distill, name)


def test_nothing_else_is_offered() -> None:
    with pytest.raises(AttributeError, match="Studnet"):
        getattr(distill, "Studnet")  # noqa: B009


def test_torch_waits_until_it_is_asked_for_and_answers_need_no_more() -> None:
    asked = "print('torch' in sys.modules)"
    others = "print(sys.modules.keys() & {'triton', 'scipy', 'duckdb', 'accelerate', 'sklearn', 'matplotlib'})"
    commands = "[getattr(distill, name) for name in distill.__all__ if name.islower() and name != 'open_set']"
    training = "import student.train; print('scipy.stats' in sys.modules)"  # which takes more than a second
    predicting = f"{asked}; distill.Student; {asked}; distill.Predictor; {others}"
    program = f"import sys, distill; {commands}; {predicting}; {training}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "True", "set()", "False"]
