import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError
from pipeline.settings import flat
from pipeline.tasks.target import Target, make_target
from pipeline.tasks.task import load_task, task_names
from student.describe import describe
from student.encoders.specs import Bert
from student.model.architecture import StudentConfig
from student.model.build_config import build_config
from student.settings import SquaredError, SweepSettings, TrainSettings, load_recipe, recipe_names, with_recipe
from student.source_settings import OneTask, Sets
from student.sweep.grid import Trial, make_points, make_trials, read_grid
from tests.helpers.messages import naming
from tests.helpers.shipped_tasks import facts

# Table II of the paper's supplement: classifier, embedding, DiffCat, bidirectional, learning rate.
TABLE = {
    "cola": ("mlp", "hybrid", True, True, 1e-4),
    "mnli": ("mlp", "hybrid", True, True, 1e-4),
    "mrpc": ("mlp", "cbow", True, False, 1e-3),
    "qnli": ("mlp", "hybrid", True, True, 5e-5),
    "qqp": ("mlp", "hybrid", True, False, 1e-4),
    "rte": ("mlp", "hybrid", True, True, 5e-4),
    "sst2": ("cnn", "cmow", False, False, 5e-4),
    "stsb": ("mlp", "cbow", True, False, 1e-4),
    "wnli": ("cnn", "cmow", False, False, 1e-5),
}
# Recipes of LSTMs: dropout and parameters.
LSTMS = {"sst2-lstm": (0.1, 963_002), "mrpc-lstm": (0.2, 1_143_002)}
# Table I: what was tried.
LEARNING_RATES = [1e-3, 5e-4, 1e-4, 5e-5, 1e-5, 5e-6]


def task_of(settings: TrainSettings) -> str:
    return str(flat(settings)["task"])


def build_student_config(name: str, target: Target | None = None) -> StudentConfig:
    settings = load_recipe(name).settings
    return build_config(settings, facts(task_of(settings), target))


def write(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text(text)
    return str(path)


def test_every_shipped_task_has_a_recipe() -> None:
    assert task_names() == sorted(TABLE)
    assert recipe_names() == sorted([*TABLE, *LSTMS, "bert"])


@pytest.mark.parametrize(("name", "dropout", "parameters"), [(name, *facts) for name, facts in LSTMS.items()])
def test_the_recipes_of_lstms_are_the_thesis(name: str, dropout: float, parameters: int) -> None:
    """As Liu's thesis has them (chapter 3); their numbers of parameters are beside the tables."""
    settings, described = load_recipe(name).settings, describe(name)["parameters"]
    assert described["total"] - described["vectors"] == parameters
    assert build_student_config(name).hidden_dropout == dropout
    assert (settings.optimizer.optimizer, settings.optimizer.rate) == ("adadelta", 1.0)
    assert (settings.loss.alpha, settings.loss.soft, settings.epochs.per_device_train_batch_size) == (
        0,
        SquaredError(),
        50,
    )
    assert {flat(trial)["lstm_size"] for trial in swept(name)} == {150, 300}
    assert {trial.head.hidden_size for trial in swept(name)} == {200, 400}


def swept(name: str) -> list[TrainSettings]:
    """What a sweep over a recipe's grid trains."""
    return [trial.settings for trial in trials_of(name, task_of(load_recipe(name).settings))]


def trials_of(name: str, task: str) -> list[Trial]:
    sweep = SweepSettings.from_flags(recipe=name)
    grid = read_grid(sweep)
    points = make_points(sweep, grid)
    return make_trials(points, 1, grid, Path("sweep"), lambda made: build_config(made, facts(task)))


def test_the_recipe_of_berts_is_for_any_task() -> None:
    settings = load_recipe("bert").settings
    student = build_config(settings, facts("mrpc"))
    assert (settings.source, settings.optimizer.rate, settings.epochs.per_device_train_batch_size) == (None, 5e-5, 32)
    assert (student.encoder, student.vector_size) == (Bert(intermediate_size=1536), 384)
    assert (student.head, student.pairing, student.hidden_dropout) == ("dense", "joint", 0.1)


@pytest.mark.parametrize("name", TABLE)
def test_a_shipped_recipe_is_the_papers(name: str) -> None:
    recipe = load_recipe(name)
    head, embedding, diffcat, bidirectional, learning_rate = TABLE[name]
    student = build_student_config(name)
    assert task_of(recipe.settings) == student.task == name
    assert (recipe.settings.encoder.embedding, recipe.settings.optimizer.rate) == (embedding, learning_rate)
    assert (student.head, student.hidden_dropout) == (head, 0.2)
    assert getattr(student.encoder, "bidirectional", False) == bidirectional
    if student.is_pair:
        assert student.pairing == ("diffcat" if diffcat else "joint")
    sizes = {"hybrid": (20, 400), "cmow": (28, 0), "cbow": (0, 784)}[embedding]
    assert (student.matrix_size, student.vector_size) == sizes
    assert (recipe.settings.loss.alpha, recipe.settings.loss.soft.temperature) == (0.5, 1)
    epochs = recipe.settings.epochs
    assert (epochs.num_train_epochs, epochs.early_stopping_patience) == (20, 5)
    assert recipe.grid == {"learning_rate": LEARNING_RATES}


def test_the_recipe_of_scores_suits_the_papers_bins_too() -> None:
    bins = make_target(load_task("stsb"), "classification")
    assert build_student_config("stsb", bins).target.num_logits == 21


@pytest.mark.parametrize("name", TABLE)
def test_a_shipped_recipes_grid_can_be_swept(name: str) -> None:
    trials = trials_of(name, name)
    assert [trial.settings.optimizer.learning_rate for trial in trials] == LEARNING_RATES
    assert {trial.settings.head.head for trial in trials} == {TABLE[name][0]}


def test_what_was_given_as_a_flag_beats_the_recipe(tmp_path: Path) -> None:
    recipe = write(tmp_path, "{task: cola, alpha: 0.9, temperature: 3, bidirectional: false, embedding: cmow}")
    made = flat(TrainSettings.from_flags(recipe=recipe, alpha=0.5, bidirectional=True, seed=7))
    said = {"task": "cola", "alpha": 0.5, "temperature": 3, "bidirectional": True, "embedding": "cmow", "seed": 7}
    assert made == flat(TrainSettings.from_flags(embedding="cmow")) | said | {"recipe": recipe}


def test_without_a_recipe_nothing_is_added() -> None:
    assert with_recipe({"task": "rte", "alpha": 0.25}) == {"task": "rte", "alpha": 0.25}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, OneTask(task="rte")),
        ({"set": "./sets/rte"}, Sets(set=("./sets/rte",))),
        ({"task": "rte-large"}, OneTask(task="rte-large")),
    ],
)
def test_the_set_that_a_flag_names_replaces_the_recipes(given: dict[str, str], expected: OneTask | Sets) -> None:
    config = TrainSettings.from_flags(recipe="rte", **given)
    assert config.source == expected
    assert config.optimizer.learning_rate == TABLE["rte"][-1]


def test_a_flags_task_replaces_a_recipes_set(tmp_path: Path) -> None:
    config = TrainSettings.from_flags(recipe=write(tmp_path, "set: sets/x"), task="cola")
    assert config.source == OneTask(task="cola")


def train_by_command(recipe: str, logit_set: Path, output_dir: Path, *flags: str) -> dict[str, Any]:
    """The settings of the run that a command makes."""
    places = ["--set", str(logit_set), "--output-dir", str(output_dir)]
    result = CliRunner().invoke(app, ["train-student", "--recipe", recipe, *places, *flags])
    assert result.exit_code == 0, result.output
    return dict(json.loads((output_dir / "run.json").read_text())["settings"])


def test_the_command_takes_from_a_recipe_what_was_not_typed(store: Path, tmp_path: Path) -> None:
    text = "{task: rte, alpha: 0.9, bidirectional: true, num_train_epochs: 1, matrix_size: 3, vector_size: 5}"
    recipe = write(tmp_path, text)
    settings = train_by_command(recipe, store / "opinion", tmp_path / "a", "--hidden-size", "8")
    assert (settings["alpha"], settings["bidirectional"], settings["num_train_epochs"]) == (0.9, True, 1)
    assert (settings["matrix_size"], settings["hidden_size"]) == (3, 8)
    typed = ["--alpha", "0.5", "--no-bidirectional", "--hidden-size", "8", "--seed", "1"]
    settings = train_by_command(recipe, store / "opinion", tmp_path / "b", *typed)
    assert (settings["alpha"], settings["bidirectional"], settings["num_train_epochs"]) == (0.5, False, 1)
    assert settings["seed"] == 1


def test_a_recipe_can_turn_off_what_a_typed_flag_turns_on(store: Path, tmp_path: Path) -> None:
    recipe = write(
        tmp_path, "{bidirectional: false, num_train_epochs: 1, matrix_size: 3, vector_size: 5, hidden_size: 8}"
    )
    assert not train_by_command(recipe, store / "opinion", tmp_path / "a")["bidirectional"]
    assert train_by_command(recipe, store / "opinion", tmp_path / "b", "--bidirectional")["bidirectional"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("learning_rat: 1", naming("'learning_rat'", "'learning_rate'", "alpha")),
        ("alpha: 2", naming("alpha: ", "2")),
        (
            "{alpha: 2, heads: cnn, embedding: elmo}",
            naming("3 problems", "embedding elmo: ", "alpha: ", "'heads'"),
        ),
        ("alpha: [", naming("YAML", "line 1, column 9")),
        ("- alpha", "mapping"),
        ("", "mapping"),
        ("{output_dir: x, store: y, alpha: 0.5}", naming("['output_dir', 'store']")),
        ("json_output: true", naming("['json_output']")),
        ("recipe: rte", naming("['recipe']")),
        ("grid: [1, 2]", naming("grid: ", "[1, 2]")),
        ("grid: {alpha: 0.5}", naming("grid: ", "{'alpha': 0.5}")),
        ("grid: {alpha: []}", "grid: "),
    ],
)
def test_a_wrong_recipe_is_told_with_its_file(tmp_path: Path, text: str, match: str) -> None:
    recipe = write(tmp_path, text)
    with pytest.raises(ConfigError, match=match) as caught:
        load_recipe(recipe)
    assert str(caught.value).startswith(f"--recipe {recipe}: ")


def test_an_unknown_name_is_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--recipe: ", "'mlni'", "'mnli'", "bert, cola, ")):
        load_recipe("mlni")
    with pytest.raises(ConfigError, match=naming(f"--recipe {tmp_path}: ")):
        load_recipe(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes("task: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml: "):
        load_recipe(str(tmp_path / "latin.yaml"))


@pytest.mark.parametrize("command", ["train-student", "sweep"])
def test_a_wrong_recipe_ends_a_command_without_a_traceback(tmp_path: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, "--recipe", write(tmp_path, "alpha: 2"), "--task", "x"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "alpha: " in result.stderr
    assert "Traceback" not in result.stderr
