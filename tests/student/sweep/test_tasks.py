"""Sweeps whose runs are of several tasks, and sweeps over which tasks are trained together."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from distill.apps.app_settings import ReportSettings
from distill.apps.report.comparison_pages import sweep_page
from distill.apps.report.page import render
from pipeline.errors import ConfigError, DataError, DistillError, FingerprintMismatchError
from pipeline.record_file import read_work_record, write_record
from pipeline.settings import as_flags, given
from student.evaluate import evaluate
from student.run_settings import EvaluateSettings
from student.settings import SweepSettings, TrainSettings
from student.sweep.sweep import sweep
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.joint_runs import same
from tests.helpers.messages import naming
from tests.helpers.report_pages import Parsed
from tests.helpers.students import tiny_config

ALONE, BOTH = "tasks=opinion", "tasks=opinion+roles"
GRID = ("tasks=opinion,opinion+roles",)


def flags_of(store: Path, folder: Path, **changes: Any) -> TrainSettings:
    return tiny_config(store / "opinion", folder, **{"set": (), "num_train_epochs": 1} | changes)


def sweep_config(store: Path, folder: Path, **changes: Any) -> SweepSettings:
    base = given(flags_of(store, folder))
    return SweepSettings.from_flags(**base | {"grid": GRID, "seeds": 2} | changes)


def scores_of(run: Path) -> dict[str, float]:
    """The mean of a run's tasks, and each one's score."""
    metrics = read_work_record(run / "run.json")["result"]["best"]["metrics"]
    return {name.split("/")[0]: next(iter(values.values())) for name, values in metrics.items()}


@pytest.fixture(scope="module")
def swept(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep over what is trained together with a task, of two seeds; read only."""
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    sweep(sweep_config(store, folder), "distill sweep")
    return folder


def test_each_tasks_scores_stand_beside_each_other(swept: Path, store: Path, tmp_path: Path) -> None:
    result = read_work_record(swept / "sweep.json")["result"]
    assert [point["values"] for point in result["points"]] == [{"tasks": "opinion"}, {"tasks": "opinion+roles"}]
    for name, point in zip((ALONE, BOTH), result["points"], strict=True):
        runs = {seed: scores_of(swept / f"{name},seed={seed}") for seed in ("42", "43")}
        assert point["scores"] == {seed: scores["tasks"] for seed, scores in runs.items()}
        tasks = {task: point["by_task"][task]["scores"] for task in point["by_task"]}
        expected = {task: {seed: scores[task] for seed, scores in runs.items()} for task in runs["42"]}
        assert tasks | {"tasks": point["scores"]} == expected
    assert result["best"] is None  # of different tasks none is the best
    for task, best in result["best_by_task"].items():
        gold = evaluate(EvaluateSettings(run=Path(best["run"])))["validation"]["gold"]
        assert (best["score"], best["metric"]) == (pytest.approx(gold["accuracy"]), "validation accuracy")
        there = [point for point in result["points"] if task in point["by_task"]]
        means = {point["values"]["tasks"]: point["by_task"][task]["mean"] for point in there}
        assert Path(best["run"]).parent.name.startswith(f"tasks={max(means, key=means.__getitem__)},")
    train(flags_of(store, tmp_path, tasks="opinion,roles", seed=43), "")
    assert all(same(swept / f"{BOTH},seed=43" / task, tmp_path / task) for task in ("opinion", "roles"))


def test_a_table_shows_each_task_and_the_page_draws_it(swept: Path, store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(swept, tmp_path / "sweep")
    config = flags_of(store, folder)
    printed = invoke("sweep", *as_flags(config), "--grid", *GRID, "--seeds", 2)
    assert printed.exit_code == 0, printed.output
    assert all(name in printed.stdout for name in ("opinion accuracy", "roles accuracy", "best of each task"))
    page = sweep_page(ReportSettings(set_or_run=str(folder), store=store), folder)
    costs = "What the scores cost"  # by value there is nothing to compare of roles, which was in one training
    drawn = [f"{costs}: opinion", "By value: opinion", f"{costs}: roles"]
    assert [section.title for section in page.sections] == ["Scores", *drawn, "Settings they share"]
    tables = Parsed(render(page)).tables
    assert [row[0] for row in tables["Best of each task"][1:]] == ["opinion", "roles"]
    assert [row[1] for row in tables["scores by task"][1:]] == ["opinion", "opinion+roles"]
    (rows,) = [figure["rows"] for figure in page.figures() if figure["section"] == "By value: opinion"]
    assert {row["tasks"]: row["validation accuracy"] for row in rows} == {
        name.removeprefix("tasks="): [scores_of(folder / f"{name},seed={seed}")["opinion"] for seed in (42, 43)]
        for name in (ALONE, BOTH)
    }


def test_runs_of_the_same_tasks_are_judged_by_their_mean(swept: Path, store: Path, tmp_path: Path) -> None:
    for seed in (42, 43):  # what this sweep would train
        shutil.copytree(swept / f"{BOTH},seed={seed}", tmp_path / f"seed={seed}")
    result = sweep(sweep_config(store, tmp_path, tasks="opinion,roles", grid=()), "")["result"]
    means = {str(seed): scores_of(tmp_path / f"seed={seed}")["tasks"] for seed in (42, 43)}
    assert (result["metric"], result["points"][0]["scores"]) == ("tasks mean", means)
    best = max(means, key=means.__getitem__)
    assert result["best"] == {"run": str(tmp_path / f"seed={best}"), "score": means[best]}
    page = sweep_page(ReportSettings(set_or_run=str(tmp_path), store=store), tmp_path)
    assert page.lead.startswith("2 runs of several tasks. The best by tasks mean: all are alike, ")
    with pytest.raises(FingerprintMismatchError, match=naming("tasks: opinion, roles there, roles now")):
        sweep(sweep_config(store, tmp_path, tasks="roles", grid=()), "")


def test_tasks_can_be_added_to_a_sweep_but_not_be_of_another_set(swept: Path, store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(swept, tmp_path / "sweep")
    train(flags_of(store, folder / "tasks=roles,seed=42", tasks="roles"), "")  # nothing is left to be trained
    sweep(sweep_config(store, folder, grid=("tasks=roles",), seeds=1), "")
    grown = sweep(sweep_config(store, folder, grid=("tasks=roles,opinion+roles",), seeds=1), "")
    assert [list(point["by_task"]) for point in grown["result"]["points"]] == [["roles"], ["roles", "opinion"]]
    settings = grown["settings"] | {"opinion.logit_set_fingerprints": ["0"]}
    write_record(folder / "sweep.json", grown | {"settings": settings})
    with pytest.raises(FingerprintMismatchError, match=naming("opinion.logit_set_fingerprints: 0 there")):
        sweep(sweep_config(store, folder), "")


def test_a_task_that_fails_before_any_work_leaves_the_record_as_it_was(
    swept: Path, store: Path, tmp_path: Path
) -> None:
    folder, sets = shutil.copytree(swept, tmp_path / "sweep"), tmp_path / "sets"
    for name in ("opinion", "roles"):
        shutil.copytree(store / name, sets / name)
    shard, *_ = sorted((sets / "roles").glob("examples/train-*"))
    shard.write_bytes(shard.read_bytes()[:-9])
    before = (folder / "sweep.json").read_bytes()
    grid = ("tasks=opinion,roles",)
    with pytest.raises(DistillError):
        sweep(sweep_config(sets, folder, grid=grid), "")
    assert (folder / "sweep.json").read_bytes() == before
    other = shutil.copytree(store / "opinion", tmp_path / "other" / "opinion")
    with pytest.raises(ConfigError, match=naming("--tasks: ", "store/opinion", other)):
        sweep(sweep_config(store, folder, grid=(f"tasks=opinion,{other}",)), "")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"query": "select 1"}, "--query: "),
        ({"layer_loss": "pkd"}, "--layer-loss: "),
        ({"task": "opinion"}, naming("--task or --tasks")),
        ({"tasks": "opinion,roles"}, naming("--grid: ", "tasks")),
        ({"grid": ("tasks=opinion,roles+roles",)}, naming("--grid: ", "--tasks: ", "roles")),
        ({"grid": ("tasks=opinion+role",)}, "'role'"),
        (
            {"grid": ("tasks=opinion+roles,roles+opinion",)},
            naming("tasks", "opinion+roles"),
        ),
        ({"grid": ("tasks=opinion+",)}, naming("tasks=opinion+")),
        ({"grid": (), "tasks": "opinion,opinion"}, naming("--tasks: ", "opinion")),
        (
            {"grid": ("num_hidden_layers=2",), "tasks": "opinion,roles"},
            naming("--grid: ", "--num-hidden-layers: ", "--embedding bert"),
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    store: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=match):
        sweep(sweep_config(store, tmp_path / "sweep", **changes), "")
    assert not (tmp_path / "sweep").exists()


def test_the_tasks_of_a_grid_are_instead_of_a_recipes(swept: Path, store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(swept, tmp_path / "sweep")
    (tmp_path / "own.yaml").write_text(json.dumps({"task": "opinion", "num_train_epochs": 1}))
    flags = given(sweep_config(store, folder, recipe=str(tmp_path / "own.yaml")))
    assert sweep(SweepSettings.from_flags(**flags), "")["state"] == "finished"
