import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import active_children
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import (
    ConfigError,
    DistillError,
    FingerprintMismatchError,
)
from pipeline.record_file import Record
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.settings import as_flags, given
from pipeline.training.run import CHECKPOINT
from student.settings import SweepSettings, TrainSettings
from student.sweep.sweep import sweep
from student.sweep.workers import train_all, train_on_cluster
from student.train import train
from tests.helpers.commands import invoke
from tests.helpers.messages import naming
from tests.helpers.students import tiny_config, weights

RATES = (0.01, 0.001)
GRID = ("learning_rate=1e-2,0.001",)


def sweep_config(logit_set: Path, folder: Path, **changes: Any) -> SweepSettings:
    """Settings of a sweep of tiny students: two learning rates, two seeds."""
    base = {name: value for name, value in given(tiny_config(logit_set, folder)).items() if name != "learning_rate"}
    return SweepSettings.from_flags(**base | {"grid": GRID, "seeds": 2} | changes)


def run_name(rate: float, seed: int) -> str:
    return f"learning_rate={rate},seed={seed}"


NAMES = [run_name(rate, seed) for rate in RATES for seed in (42, 43)]


def record_of(run: Path) -> Record:
    return dict(json.loads((run / "run.json").read_text()))


def pearson_of(run: Path) -> float:
    return float(record_of(run)["result"]["best"]["metrics"]["validation"]["pearson"])


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def times(folder: Path) -> dict[str, int]:
    """When the files of each run were written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.glob("*/*")}


@pytest.fixture(scope="module")
def rating_set(ratings: dict[str, ExampleSet]) -> Path:
    return ratings["score"].root


@pytest.fixture(scope="module")
def swept(rating_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep, two learning rates and two seeds by two processes; read only."""
    folder = tmp_path_factory.mktemp("swept") / "sweep"
    sweep(sweep_config(rating_set, folder, processes=2), "distill sweep")
    return folder


@pytest.fixture
def own_sweep(swept: Path, tmp_path: Path) -> Path:
    """A private copy of the finished sweep."""
    return shutil.copytree(swept, tmp_path / "sweep")


@pytest.mark.slow
def test_a_sweep_on_a_cluster_is_a_sweep(ray_cluster: Any, rating_set: Path, tmp_path: Path) -> None:
    grid = {"grid": ("learning_rate=1e-2",)}
    record = sweep(sweep_config(rating_set, tmp_path / "sweep", **grid, ray="local", ray_workers=1), "sweep")
    before = times(tmp_path / "sweep")
    again = sweep(sweep_config(rating_set, tmp_path / "sweep", **grid), "sweep")
    assert again["result"] == record["result"]
    assert before == times(tmp_path / "sweep")
    train(tiny_config(rating_set, tmp_path / "alone", learning_rate=0.01, seed=43), "train-student")
    assert same_weights(tmp_path / "sweep" / run_name(0.01, 43), tmp_path / "alone")


@pytest.mark.slow
def test_a_sweep_that_the_workers_do_not_see_is_refused(
    ray_cluster: Any, rating_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("student.sweep.sweep.train_on_cluster", elsewhere)
    with pytest.raises(ConfigError, match=naming("sweep/elsewhere")):
        sweep(sweep_config(rating_set, tmp_path / "sweep", ray="local", ray_workers=1), "sweep")


def elsewhere(flags: Any, folder: Path, configs: Any) -> Any:
    return train_on_cluster(flags, folder / "elsewhere", configs)


def test_a_sweeps_students_are_those_that_training_makes(swept: Path, rating_set: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in swept.iterdir() if path.is_dir()) == sorted(NAMES)
    for rate in RATES:
        for seed in (42, 43):
            alone = tiny_config(rating_set, tmp_path / run_name(rate, seed), learning_rate=rate, seed=seed)
            ours, theirs = record_of(swept / run_name(rate, seed)), train(alone, "alone")
            assert same_weights(swept / run_name(rate, seed), tmp_path / run_name(rate, seed))
            assert (ours["result"], ours["settings"]) == (theirs["result"], theirs["settings"])
    assert not same_weights(swept / NAMES[0], swept / NAMES[1])
    assert not list(swept.glob(f"*/{CHECKPOINT}"))


def test_a_runs_command_makes_the_same_run(swept: Path) -> None:
    for name in NAMES:
        command = record_of(swept / name)["command"]
        assert command.startswith("distill train-student ")
        assert f"--output-dir {swept / name}" in command
        assert f"--seed {name[-2:]}" in command
        assert "--grid" not in command


def test_the_result_is_computed_from_the_runs_records(swept: Path) -> None:
    record = json.loads((swept / "sweep.json").read_text())
    assert (record["state"], record["command"]) == ("finished", "distill sweep")
    result = record["result"]
    assert result["metric"] == "validation pearson"
    scores = {rate: {seed: pearson_of(swept / run_name(rate, int(seed))) for seed in ("42", "43")} for rate in RATES}
    points = [
        {
            "values": {"learning_rate": rate},
            "scores": by_seed,
            "mean": pytest.approx(mean(by_seed.values())),
            "deviation": pytest.approx(stdev(by_seed.values())),
        }
        for rate, by_seed in sorted(scores.items(), key=lambda item: -mean(item[1].values()))
    ]
    assert result["points"] == points
    best = max(NAMES, key=lambda name: pearson_of(swept / name))
    assert result["best"] == {"run": str(swept / best), "score": pearson_of(swept / best)}
    assert result["failed"] == {}
    assert len({score for by_seed in scores.values() for score in by_seed.values()}) == 4


def test_a_repeated_sweep_trains_nothing(own_sweep: Path, rating_set: Path) -> None:
    before, there = times(own_sweep), json.loads((own_sweep / "sweep.json").read_text())["result"]
    again = sweep(sweep_config(rating_set, own_sweep, processes=2), "again")["result"]
    assert times(own_sweep) == before
    assert again["points"] == there["points"]
    assert Path(again["best"]["run"]) == own_sweep / Path(there["best"]["run"]).name


def test_the_command_shows_what_the_record_says(own_sweep: Path, rating_set: Path) -> None:
    config = sweep_config(rating_set, own_sweep)
    flags = as_flags(TrainSettings.from_flags(**config.student))
    arguments = ["sweep", *flags, "--seeds", "2", "--grid", GRID[0]]
    told_json = CliRunner().invoke(app, [*arguments, "--json"])
    assert told_json.exit_code == 0, told_json.output
    result = json.loads((own_sweep / "sweep.json").read_text())["result"]
    assert json.loads(told_json.stdout) == result
    table = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert table.exit_code == 0, table.output
    for point in result["points"]:
        row = next(line for line in table.stdout.splitlines() if f" {point['values']['learning_rate']:g} " in line)
        assert f"{point['mean']:.4f}".rstrip("0") in row
    assert f"{result['best']['score']:.4f}".rstrip("0") in table.stdout.split("best run")[1]


def test_equal_settings_are_named_beside_the_best_run(own_sweep: Path, rating_set: Path) -> None:
    for path in own_sweep.glob("*/run.json"):
        record = json.loads(path.read_text())
        del record["record_sha256"]
        record["result"]["best"]["metrics"]["validation"]["pearson"] = 0.5
        path.write_text(json.dumps(record))
    flags = as_flags(TrainSettings.from_flags(**sweep_config(rating_set, own_sweep).student))
    shown = invoke("sweep", *flags, "--seeds", "2", "--grid", GRID[0])
    assert shown.exit_code == 0, shown.output
    assert re.search("clearly.* learning_rate 0.01 and learning_rate 0.001", shown.stderr), shown.stderr


@pytest.mark.slow
def test_a_grown_sweep_trains_what_is_new_and_reports_what_fails(own_sweep: Path, rating_set: Path) -> None:
    before = times(own_sweep)
    grown = sweep_config(rating_set, own_sweep, grid=("learning_rate=1e30,0.02,0.01,0.001",), seeds=1)
    result = sweep(grown, "grown")["result"]
    after = times(own_sweep)
    assert {name: after[name] for name in before} == before
    new = {Path(name).parts[0] for name in after.keys() - before.keys()}
    assert new == {"learning_rate=0.02,seed=42", "learning_rate=1e+30,seed=42"}
    assert list(result["failed"]) == ["learning_rate=1e+30,seed=42"]
    assert "--learning-rate" in result["failed"]["learning_rate=1e+30,seed=42"]
    means = {point["values"]["learning_rate"]: point["mean"] for point in result["points"]}
    assert means == {rate: pearson_of(own_sweep / run_name(rate, 42)) for rate in (0.02, 0.01, 0.001)}
    assert list(means.values()) == sorted(means.values(), reverse=True)
    assert {point["deviation"] for point in result["points"]} == {None}


@pytest.mark.slow
def test_a_sweep_whose_every_run_fails_tells_why(rating_set: Path, tmp_path: Path) -> None:
    config = sweep_config(rating_set, tmp_path, grid=("learning_rate=1e30",), seeds=1)
    with pytest.raises(DistillError, match=naming("learning_rate=1e+30,seed=42: ", "--learning-rate")):
        sweep(config, "")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"alpha": 0.25}, ("alpha: 0.5", "0.25")),
        ({"hidden_size": 9}, ("hidden_size: 8", "9")),
        ({"where": "source_row < 50"}, ("where: ", "source_row < 50")),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    own_sweep: Path, rating_set: Path, change: dict[str, object], match: tuple[str, ...]
) -> None:
    before = times(own_sweep)
    with pytest.raises(FingerprintMismatchError, match=naming(*match, "--output-dir")):
        sweep(sweep_config(rating_set, own_sweep, **change), "")
    assert times(own_sweep) == before


def test_another_set_in_the_same_folder_is_refused(own_sweep: Path, store: Path) -> None:
    with pytest.raises(FingerprintMismatchError, match="logit_set_fingerprints: "):
        sweep(sweep_config(store / "opinion", own_sweep), "")


@pytest.mark.parametrize(
    "change", [{"alpha": 0.5}, {"embedding": "hybrid", "soft_loss": "kl"}, {"allow_unverified": True}]
)
def test_flags_that_change_no_student_are_not_other_settings(
    own_sweep: Path, rating_set: Path, change: dict[str, object]
) -> None:
    before = times(own_sweep)
    sweep(sweep_config(rating_set, own_sweep, **change), "")
    assert times(own_sweep) == before


def test_where_the_set_and_the_sweep_lie_does_not_matter(own_sweep: Path, rating_set: Path, tmp_path: Path) -> None:
    before = times(own_sweep)
    copy = shutil.copytree(rating_set, tmp_path / "elsewhere" / "moved")
    moved = sweep_config(copy, own_sweep.rename(tmp_path / "renamed"))
    sweep(moved, "")
    assert times(tmp_path / "renamed") == before


@pytest.mark.slow
def test_a_wrong_selection_is_a_clear_error_and_can_be_mended(
    own_sweep: Path, rating_set: Path, tmp_path: Path
) -> None:
    with pytest.raises(DistillError, match=naming("store/score: ", "--where 'score = 7'")):
        sweep(sweep_config(rating_set, tmp_path / "new", where="score = 7"), "")
    for name in NAMES:  # what a mended command would train
        shutil.copytree(own_sweep / name, tmp_path / "new" / name)
    assert sweep(sweep_config(rating_set, tmp_path / "new"), "mended")["state"] == "finished"


@pytest.mark.slow
def test_a_damaged_set_is_a_clear_error(rating_set: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(rating_set, tmp_path / "set")
    shard = next((copy / "examples").glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DistillError, match=shard.name):
        sweep(sweep_config(copy, tmp_path / "sweep"), "")


def test_nothing_to_sweep_is_a_clear_error(rating_set: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("--task NAME", "--set SET")):
        sweep(sweep_config(rating_set, tmp_path / "sweep", set=()), "")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_a_process_reads_the_rows_once_for_all_its_students(store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(store / "opinion", tmp_path / "opinion")
    configs = [tiny_config(copy, tmp_path / str(seed), seed=seed) for seed in range(3)]
    done = []
    for number, error in train_all(configs, 1):
        assert error is None
        done.append(number)
        shutil.rmtree(copy / "examples", ignore_errors=True)  # whoever reads the rows again fails
    assert sorted(done) == [0, 1, 2]
    train(tiny_config(store / "opinion", tmp_path / "alone", seed=2), "")
    assert same_weights(tmp_path / "2", tmp_path / "alone")


@pytest.mark.slow
def test_a_worker_that_the_system_kills_is_a_clear_error(store: Path, tmp_path: Path) -> None:
    long = {"num_train_epochs": 200, "early_stopping_patience": 200, "per_device_train_batch_size": 1}
    quick = tiny_config(store / "opinion", tmp_path / "quick", num_train_epochs=1)
    running = train_all([quick, tiny_config(store / "opinion", tmp_path / "long", **long)], 1)
    assert next(running) == (0, None)
    (worker,) = active_children()
    worker.kill()
    with pytest.raises(DistillError):
        list(running)
    assert not active_children()


@pytest.mark.slow
def test_ctrl_c_between_two_students_ends_the_workers(
    rating_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("student.sweep.sweep.score_of", interrupted)  # for the first one, while the other is trained
    changes = {"grid": ("num_train_epochs=1,1000000",), "early_stopping_patience": 10**6, "seeds": 1, "processes": 2}
    flags = given(sweep_config(rating_set, tmp_path, **changes))
    config = SweepSettings.from_flags(**{name: value for name, value in flags.items() if name != "num_train_epochs"})
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            sweep(config, "")
        assert caught.traceback  # what holds the frames holds what they iterate over
        for child in active_children():
            child.join(300)  # a loaded machine takes its time
        assert not active_children()
    finally:
        for child in active_children():
            child.kill()


def test_nothing_missing_starts_no_process() -> None:
    assert list(train_all([], 4)) == []
    assert not active_children()


LONG = {"num_train_epochs": 20, "early_stopping_patience": 20, "per_device_train_batch_size": 16}


def start_sweep(config: SweepSettings) -> subprocess.Popen[str]:
    """Starts the command in a process group of its own; its workers share its stderr."""
    tried = {entry.partition("=")[0] for entry in config.grid}
    taken = {name: value for name, value in config.student.items() if name not in tried}
    flags = [*as_flags(TrainSettings.from_flags(**taken)), "--grid", *config.grid, "--seeds", str(config.seeds)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "distill", "sweep", *flags, "--processes", str(config.processes)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(paths: list[Path], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 100
    while not all(path.exists() for path in paths) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def stderr_of_all(process: subprocess.Popen[str]) -> str:
    """The output of the command and its workers, after all of them have ended."""
    try:
        return process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("a worker outlives the command")


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_result(rating_set: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    changes = LONG | {"grid": GRID, "seeds": 1, "processes": 1}
    config = sweep_config(rating_set, folder, **changes)
    runs = {rate: folder / run_name(rate, 42) for rate in RATES}
    process = start_sweep(config)
    wait_for([runs[0.001] / CHECKPOINT], process)  # the last one runs, so the other is finished
    process.kill()
    stderr = stderr_of_all(process)
    assert process.returncode == -signal.SIGKILL, stderr
    assert record_of(runs[0.01])["state"] == "finished"
    assert record_of(runs[0.001])["state"] == "running"
    before = times(folder)

    result = sweep(config, "again")["result"]
    after = times(folder)
    assert all(after[name] == before[name] for name in before if folder / Path(name).parent == runs[0.01])
    assert result["failed"] == {}
    for rate, run in runs.items():
        whole = train(tiny_config(rating_set, tmp_path / str(rate), **LONG, learning_rate=rate), "undisturbed")
        assert same_weights(run, tmp_path / str(rate))
        assert record_of(run)["result"] == whole["result"]
        assert {"learning_rate": rate} in [point["values"] for point in result["points"]]


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_too(rating_set: Path, tmp_path: Path) -> None:
    changes = {"grid": ("num_train_epochs=1,1000000",), "early_stopping_patience": 10**6, "seeds": 1, "processes": 2}
    process = start_sweep(sweep_config(rating_set, tmp_path, **changes))
    short, endless = (tmp_path / f"num_train_epochs={epochs},seed=42" for epochs in (1, 10**6))
    wait_for([short / "README.md", endless / CHECKPOINT], process)  # one worker has nothing to do, the other has
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    stderr = stderr_of_all(process)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert record_of(endless)["state"] == "running"
    assert json.loads((tmp_path / "sweep.json").read_text())["state"] == "running"
