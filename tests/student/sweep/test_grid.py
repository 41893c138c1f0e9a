import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import ConfigError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.settings import as_flags, flat
from student.model.build_config import build_config
from student.settings import SweepSettings, TrainSettings
from student.sweep.grid import Trial, make_points, make_trials, read_grid
from student.training_data import task_facts
from tests.helpers.flags import parsed
from tests.helpers.messages import naming


def trials_of(logit_set: ExampleSet, folder: Path, *grid: str, **flags: object) -> list[Trial]:
    config = SweepSettings.from_flags(grid=grid, set="set", **flags)
    values = read_grid(config)
    points = make_points(config, values)
    return make_trials(points, config.seeds, values, folder, lambda made: build_config(made, task_facts(logit_set)))


def test_every_combination_of_values_with_every_seed(opinion_set: ExampleSet, tmp_path: Path) -> None:
    trials = trials_of(opinion_set, tmp_path, "learning_rate=1e-3,5e-4", "head=mlp,cnn", seeds=2, seed=5, alpha=0.25)
    assert [trial.values for trial in trials] == [
        {"learning_rate": rate, "head": head, "seed": seed}
        for rate in (1e-3, 5e-4)
        for head in ("mlp", "cnn")
        for seed in (5, 6)
    ]
    for trial in trials:
        made = flat(trial.settings)
        assert {name: made[name] for name in trial.values} == trial.values
        assert (made["alpha"], made["set"], made["output_dir"]) == (0.25, ("set",), trial.folder)
        assert type(trial.settings) is TrainSettings
    assert [trial.point for trial in trials[::2]] == [(1e-3, "mlp"), (1e-3, "cnn"), (5e-4, "mlp"), (5e-4, "cnn")]


def test_without_a_grid_only_the_seeds_differ(opinion_set: ExampleSet, tmp_path: Path) -> None:
    trials = trials_of(opinion_set, tmp_path, seeds=3)
    assert [trial.values for trial in trials] == [{"seed": 42}, {"seed": 43}, {"seed": 44}]
    assert {trial.point for trial in trials} == {()}


@pytest.mark.parametrize(
    ("grid", "folder"),
    [
        ("learning_rate=1e-3", "learning_rate=0.001,seed=42"),
        ("learning-rate=0.0010", "learning_rate=0.001,seed=42"),
        ("bidirectional=no", "bidirectional=False,seed=42"),
        ("num_train_epochs=07", "num_train_epochs=7,seed=42"),
    ],
)
def test_a_folder_is_named_after_its_parsed_values(
    opinion_set: ExampleSet, tmp_path: Path, grid: str, folder: str
) -> None:
    (trial,) = trials_of(opinion_set, tmp_path, grid)
    assert trial.folder == tmp_path / folder
    assert not trial.is_finished
    assert not list(tmp_path.iterdir())


def test_a_run_is_finished_when_its_record_says_so(opinion_set: ExampleSet, tmp_path: Path) -> None:
    (trial,) = trials_of(opinion_set, tmp_path)
    trial.folder.mkdir()
    record = {"state": "running", "settings": {}, "command": ""}
    (trial.folder / "run.json").write_text(json.dumps(record))
    assert not trial.is_finished
    (trial.folder / "run.json").write_text(json.dumps(record | {"state": "finished"}))
    assert trial.is_finished


@pytest.mark.parametrize(
    ("grid", "match"),
    [
        (["learning_rat=1"], naming("'learning_rat'", "'learning_rate'", "alpha, ")),
        (["seed=1,2"], "'seed'"),
        (["output_dir=a,b"], "'output_dir'"),
        (["where=label = 1"], "'where'"),
        (["alpha"], "alpha: "),
        (["alpha="], "alpha: "),
        (["alpha=0.1,,0.2"], "alpha: "),
        (["alpha=0.1", "alpha=0.2"], "alpha"),
        (["alpha=0.5,.5"], r"alpha=0\.5,seed=42"),
        (["alpha=0.5,2"], naming("--alpha: ", "'2'")),
        (["head=cnn,rnn"], naming("--head: ", "'bilstm'", "'rnn'")),
        (["matrix_size=2,8", "head=cnn"], naming("cnn", "2")),
        (["hidden_size=4,8", "head=mlp,linear"], naming("--hidden-size: ", "--head linear")),
        (["temperature=1,2", "soft_loss=kl,mse"], naming("--temperature: ", "--soft-loss kl")),
    ],
)
def test_a_wrong_grid_is_told(opinion_set: ExampleSet, tmp_path: Path, grid: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        trials_of(opinion_set, tmp_path, *grid)


def problems_of(error: ConfigError) -> Iterable[str]:
    return [line for line in str(error).splitlines() if line.startswith("  - ")]


def test_all_wrong_names_are_told_at_once(opinion_set: ExampleSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--grid: 3 problems")) as caught:
        trials_of(opinion_set, tmp_path, "alfa=1", "store=x", "temperature=")
    names = ("'alfa'", "'store'", "temperature:")
    assert all(name in line for name, line in zip(names, problems_of(caught.value), strict=True))


def test_all_wrong_values_are_told_at_once_and_each_once(opinion_set: ExampleSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--grid: 2 problems")) as caught:
        trials_of(opinion_set, tmp_path, "alpha=3,0.5,4", "head=mlp,linear", seeds=4)
    assert all(f"'{value}'" in line for value, line in zip((3, 4), problems_of(caught.value), strict=True))
    with pytest.raises(ConfigError, match="--grid: ") as caught:
        trials_of(opinion_set, tmp_path, "alpha=3,0.5", "head=mlp,rnn")
    assert all(value in str(caught.value) for value in ("'3'", "'rnn'"))


def test_a_name_in_a_recipes_grid_that_is_no_text_is_told(opinion_set: ExampleSet, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("grid: {1: [2]}")
    with pytest.raises(ConfigError, match=naming("--grid: ", "1")):
        trials_of(opinion_set, tmp_path, recipe=str(tmp_path / "own.yaml"))


def test_a_recipes_grid_is_tried_unless_a_grid_is_given(opinion_set: ExampleSet, tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("{alpha: 0.9, grid: {temperature: [1, 2.0], token_dropout: [0]}}")
    tried = [t.values for t in trials_of(opinion_set, tmp_path, recipe=str(recipe))]
    assert tried == [{"temperature": t, "token_dropout": 0, "seed": 42} for t in (1, 2)]
    given = trials_of(opinion_set, tmp_path, "alpha=0.1,0.2", recipe=str(recipe))
    assert [t.values for t in given] == [{"alpha": alpha, "seed": 42} for alpha in (0.1, 0.2)]
    assert [flat(t.settings)["temperature"] for t in given] == [1, 1]


def test_a_wrong_grid_of_a_recipe_is_told_too(opinion_set: ExampleSet, tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("grid: {alpha: [0.5, 7], temperatur: [1]}")
    with pytest.raises(ConfigError, match=naming("--grid: ", "'temperatur'", "'temperature'")):
        trials_of(opinion_set, tmp_path, recipe=str(recipe))
    recipe.write_text("grid: {alpha: [0.5, 7]}")
    with pytest.raises(ConfigError, match=naming("--alpha: ", "7")):
        trials_of(opinion_set, tmp_path, recipe=str(recipe))


def test_a_wrong_grid_is_told_first(store: Path, tmp_path: Path) -> None:
    arguments = ["--set", str(store / "opinion"), "--output-dir", str(tmp_path / "sweep"), "--grid", "alpha=1,2"]
    result = CliRunner().invoke(app, ["sweep", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: --grid: --alpha: " in result.stderr
    assert not (tmp_path / "sweep").exists()


def test_flags_of_a_trial_make_it_again(opinion_set: ExampleSet, tmp_path: Path) -> None:
    for trial in trials_of(opinion_set, tmp_path, "bidirectional=yes,no", "learning_rate=1e-5,3e-4", recipe="rte"):
        assert parsed(as_flags(trial.settings)) == trial.settings


def test_a_flag_beats_a_recipes_grid_not_ones_own(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("grid: {alpha: [0, 1]}")
    assert read_grid(SweepSettings.from_flags(recipe=str(recipe), alpha=0.3)) == {}
    assert read_grid(SweepSettings.from_flags(recipe=str(recipe), seeds=2)) == {"alpha": [0, 1]}
    with pytest.raises(ConfigError, match=naming("--grid: ", "alpha")):
        read_grid(SweepSettings.from_flags(alpha=0.3, grid=("alpha=0,1",)))


def test_flags_of_a_part_that_the_grid_chooses_are_taken(opinion_set: ExampleSet, tmp_path: Path) -> None:
    trials = trials_of(opinion_set, tmp_path, "embedding=lstm,biattentive", lstm_size=7)
    assert [flat(trial.settings)["lstm_size"] for trial in trials] == [7, 7]
    with pytest.raises(ConfigError, match=naming("--lstm-size: ", "--embedding lstm")):
        trials_of(opinion_set, tmp_path, "embedding=lstm,cbow", lstm_size=7)
