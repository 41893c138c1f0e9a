import re
from pathlib import Path

import pytest

from distill.apps.experiments.experiment import TaskParts, load_experiment
from pipeline.errors import ConfigError

WHOLE = """
teacher: {num_train_epochs: 2}
sets:
  plain: {augment: none}
  masked: {augment: mask-pos, num_variants: 3}
students:
  small: {vector_size: 8}
  on variants: {set: masked, alpha: 0.2, bidirectional: false}
tasks:
  rte:
    teacher: {num_train_epochs: 9, held_out: 0.2}
    students: {small: {alpha: 1}}
"""


def parts(path: Path, text: str, task: str = "sst2") -> TaskParts:
    path.write_text(text)
    return TaskParts(load_experiment(str(path)), task, f"--experiment {path.name}")


def test_settings_become_flags(tmp_path: Path) -> None:
    of_all = parts(tmp_path / "a.yaml", WHOLE)
    assert sorted(of_all.teacher) == sorted(["--num-train-epochs", "2", "--held-out", "0.1"])
    assert of_all.sets["plain"] == ["--augment", "none"]
    assert sorted(of_all.sets["masked"]) == sorted(["--augment", "mask-pos", "--num-variants", "3"])
    assert of_all.students["small"] == ["--vector-size", "8"]
    assert sorted(of_all.students["on variants"]) == sorted(["--alpha", "0.2", "--no-bidirectional"])
    assert of_all.set_of == {"small": "plain", "on variants": "masked"}


def test_a_task_may_have_settings_of_its_own(tmp_path: Path) -> None:
    rte = parts(tmp_path / "a.yaml", WHOLE, "rte")
    assert sorted(rte.teacher) == sorted(["--num-train-epochs", "9", "--held-out", "0.2"])
    assert rte.students["small"] == ["--vector-size", "8", "--alpha", "1.0"]


def test_a_recipe_is_written_out(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("task: mrpc\nhead: linear\nalpha: 0.7")
    students = parts(
        tmp_path / "a.yaml", f"sets: {{a: {{}}}}\nstudents: {{own: {{recipe: {recipe}, alpha: 0.1}}}}"
    ).students
    assert sorted(students["own"]) == sorted(["--head", "linear", "--alpha", "0.1"])


def test_the_one_of_the_package_can_be_read() -> None:
    told = TaskParts(load_experiment("glue"), "mnli", "glue")
    held_out = ["--held-out", "0.1"]
    assert sorted(told.students["gold alone"]) == sorted([*held_out, "--alpha", "1.0", "--where", "variant = 0"])
    assert sorted(told.students["CBOW"]) == sorted([*held_out, "--embedding", "cbow"])
    assert told.teacher == ["--held-out", "0.1"]


def test_the_students_of_the_papers_are_those_of_their_tables() -> None:
    told = TaskParts(load_experiment("papers"), "mrpc", "papers")
    embeddings = ["bidirectional Hybrid", "Hybrid", "CMOW", "CBOW", "joint Hybrid", "joint CMOW", "joint CBOW"]
    tables = {f"{name}, {head}" for name in embeddings for head in ("linear", "mlp", "cnn", "bilstm")}
    lstms = {f"LSTM, {name}" for name in ("gold", "logits", "masks", "masks and words")}
    others = {"only soft loss", "bi-attentive LSTM, logits", "bi-attentive LSTM, gold"}
    assert set(told.students) == tables | lstms | others
    for name, flags in told.students.items():
        alpha = "1.0" if name.endswith("gold") else "0.5" if name in tables else "0.0"
        assert flags[flags.index("--alpha") + 1] == alpha
    assert told.set_of["LSTM, masks and words"] == "masks and words"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sets: {a: {}}\nstudnts: {}", "'studnts'. Did you mean 'students'?"),
        ("sets: {a: {}}", "`students`"),
        ("sets: {a: {}}\nstudents: {b: {alhpa: 1}}", "students: b: "),
        ("sets: {a: {}}\nstudents: {b: {seed: 1}}", "'seed'"),
        ("sets: {a: {}}\nstudents: {b: {set: aa}}", "students: b: "),
        ("sets: {a: {}}\nstudents: {b: {set: [a]}}", "students: b: "),
        ("sets: {a: {}}\nstudents: {b 1: {}, b-1: {}}", "names"),
        ("sets: {a: {}}\nstudents: {b: {alpha: 3}}", "alpha"),
        ("a: [", "YAML"),
    ],
)
def test_what_is_wrong_is_told(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parts(tmp_path / "a.yaml", text)
    assert message in str(caught.value)


def test_a_set_that_is_left_empty_is_the_first(tmp_path: Path) -> None:
    assert parts(tmp_path / "a.yaml", "sets: {a: {}, c: {}}\nstudents: {b: {set: }}").set_of == {"b": "a"}


def test_the_one_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "students.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    rte = parts(tmp_path / "a.yaml", text, "rte")
    assert rte.students["default"] == ["--pairing", "compare"]
    assert rte.set_of["with variants"] == "masked"
