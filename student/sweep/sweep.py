"""``distill sweep``: trains a run for every combination of values and seed, and writes a record of all runs."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import console
from pipeline.errors import DistillError
from pipeline.file_names import SWEEP_RECORD, WEIGHTS_FILE
from pipeline.files import sha256, write_atomically
from pipeline.record_file import Record, read_work_record, write_record
from pipeline.resumable import Workspace, require_same_settings
from pipeline.settings import deciding, defaults
from pipeline.text.word_vectors import file_sha256
from pipeline.training import best_epoch
from pipeline.training.best_epoch import quality
from pipeline.training.joint import entry_of
from pipeline.training.run_record import STUDENTS, Entry
from student.initial_weights.vectors import INIT_FLAG
from student.losses.ted_filters import FILTERS_FILE
from student.settings import Start, SweepSettings, TrainSettings
from student.summary import rank
from student.sweep.grid import (
    Trial,
    build_swept_config,
    fixed_values,
    is_of_a_task,
    make_points,
    make_trials,
    open_all,
    read_grid,
    settings_of,
)
from student.sweep.workers import train_all, train_on_cluster

# A trial with its best epoch, or with the part of that epoch that concerns one task.
Scored = tuple[Trial, Entry]
ByPoint = dict[tuple[Any, ...], list[Scored]]


def sweep(config: SweepSettings, command: str) -> Record:
    """Trains every student of a grid. Finished runs are not repeated, and unfinished ones are resumed.

    Args:
        config: settings, grid and seeds.
        command: the command line, for the record.

    Returns: The content of ``sweep.json``; its ``result`` has the deciding ``metric``, the ``points`` of the grid
        (values, scores by seed, mean, deviation) with the best mean first, the ``best`` run of the first point, and
        ``failed``. With ``--tasks``, each point also has these scores ``by_task``, and ``best_by_task`` lists each
        task's best student. If the grid varies tasks, points keep its order, and ``best`` is None.

    Raises:
        ConfigError: naming every problem of the grid, before anything is trained.
        FingerprintMismatchError: if the folder holds a sweep with other settings.
    """
    grid = read_grid(config)
    points = make_points(config, grid)
    sets = open_all(points)
    opened = [one for several in sets.values() for one in several.sets]
    folder = points[0].output_dir or Path("sweeps") / (
        "tasks" if "tasks" in grid else "+".join(one.name for one in opened)
    )
    trials = make_trials(points, config.seeds, grid, folder, partial(build_swept_config, sets))
    fixed = fixed_values(config, grid)
    common = {name: value for name, value in deciding(points[0]).items() if name not in grid}
    settings = defaults(TrainSettings) | common | _contents(fixed) | settings_of(fixed, sets)
    path = folder / SWEEP_RECORD
    # If this try starts no run, its record is withdrawn, so that corrected settings can be used.
    before, begun = path.read_bytes() if path.exists() else None, [trial.folder.exists() for trial in trials]
    work = _start(settings, folder, command)
    try:
        failed = _train_missing(config, folder, trials)
    except DistillError:
        # No run was started with these settings, so they must not bind the next try.
        if begun == [trial.folder.exists() for trial in trials]:
            if before is None:
                path.unlink()
            else:
                write_atomically(path, lambda temporary: temporary.write_bytes(before))
        raise
    return work.finish(sweep_result(trials, failed))


def _contents(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hashes of the files that all students start from."""
    start, filters = Start(init=fixed.get("init")), fixed.get("filters")
    return {
        "init_from_sha256": sha256(start.folder / WEIGHTS_FILE) if start.folder else None,
        "init_vectors_sha256": file_sha256(start.words, INIT_FLAG) if start.words else None,
        "filters_sha256": sha256(Path(filters) / FILTERS_FILE) if filters else None,
    }


def _start(settings: dict[str, Any], folder: Path, command: str) -> Workspace:
    """Starts or resumes the record of a sweep.

    All runs of a folder have the same settings except for the grid's values, which may grow between tries, also by
    tasks.
    """
    path, advice = folder / SWEEP_RECORD, "Choose another --output-dir"
    if path.exists():
        record = read_work_record(path)
        stored = record["settings"]
        added = {name: value for name, value in settings.items() if is_of_a_task(name) and name not in stored}
        settings = {name: value for name, value in stored.items() if is_of_a_task(name)} | settings
        require_same_settings(f"{folder} holds a sweep", stored | added, settings, advice)
        write_record(path, record | {"settings": stored | added})
    context = {"command": command}
    work = Workspace(folder, settings, advice=advice, title="a sweep", record_name=SWEEP_RECORD, context=context)
    if work.start() == "finished":
        work.reopen()
    return work


def _train_missing(config: SweepSettings, folder: Path, trials: Sequence[Trial]) -> dict[str, str]:
    """Trains unfinished runs. Returns errors by the name of the run."""
    missing = [trial for trial in trials if not trial.is_finished]
    configs, failed = [trial.settings for trial in missing], {}
    if config.cluster is None:
        trained = train_all(configs, config.processes)
    else:
        trained = train_on_cluster(config.cluster, folder, configs)
    # `closing` ends the worker processes even if Ctrl-C arrives between two students.
    with closing(trained), console.progress(len(missing), "students") as bar:
        for number, error in trained:
            trial = missing[number]
            if error is None:
                console.note(f"{trial.folder.name}: {score_of(trial):.4f}")
            else:
                # One failed student, such as a diverged one, does not end the others.
                failed[trial.folder.name] = str(error)
                console.warn(f"{trial.folder.name}: {error}")
            bar.advance()
    return failed


def sweep_result(trials: Sequence[Trial], failed: Mapping[str, str]) -> dict[str, Any]:
    """Returns the result of a sweep for its record.

    Args:
        trials: all trials of the grid.
        failed: errors by the name of the run.

    Raises:
        DistillError: if no run is finished.
    """
    records = [(trial, trial.record) for trial in trials if trial.is_finished]
    if not records:
        raise DistillError(
            "no run of the sweep has finished:\n" + "\n".join(f"  - {k}: {v}" for k, v in failed.items())
        )
    whole = _by_point([(trial, record["result"]["best"]) for trial, record in records])
    by_task = {name: _by_point(scored) for name, scored in _of_tasks(records).items()}
    points = [_point(point, whole, by_task) for point in whole]
    best: dict[str, Any] | None = None
    # Points of different tasks have means over different metrics, so no best point is named.
    metric = "scores by task"
    if "tasks" not in trials[0].values:
        points.sort(key=rank, reverse=True)
        best = _best(whole)
        metric = best.pop("metric")
    result = {"metric": metric, "points": points, "best": best, "failed": dict(failed)}
    of_tasks = {name: _best(of_task, name) for name, of_task in by_task.items()}
    return result | ({"best_by_task": of_tasks} if any(STUDENTS in record for _, record in records) else {})


def score_of(trial: Trial) -> float:
    """Returns the score of a trial: the best epoch's first metric, or the mean over several tasks."""
    return quality(trial.record["result"]["best"])


def _of_tasks(records: Sequence[tuple[Trial, Record]]) -> dict[str, list[Scored]]:
    """Returns the best epochs' scores of each task with gold in dev, empty for runs of one task."""
    found: dict[str, list[Scored]] = {}
    for trial, record in records:
        for name in record.get(STUDENTS, ()):
            entry = entry_of(name, record["result"]["best"])
            if any(entry["metrics"].values()):
                found.setdefault(name, []).append((trial, entry))
    return found


def _by_point(scored: Sequence[Scored]) -> ByPoint:
    """Groups trials that differ only in their seeds."""
    found: ByPoint = {}
    for one in scored:
        found.setdefault(one[0].point, []).append(one)
    return found


def _point(point: tuple[Any, ...], whole: ByPoint, by_task: Mapping[str, ByPoint]) -> dict[str, Any]:
    values = {name: value for name, value in whole[point][0][0].values.items() if name != "seed"}
    of_tasks = {name: _summary(of_task[point]) for name, of_task in by_task.items() if point in of_task}
    return {"values": values} | _summary(whole[point]) | ({"by_task": of_tasks} if by_task else {})


def _summary(alike: Sequence[Scored]) -> dict[str, Any]:
    by_seed = {str(trial.values["seed"]): quality(entry) for trial, entry in alike}
    scores = list(by_seed.values())
    # Seeds are a sample, so the estimate divides by one less than their number.
    deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    return {"scores": by_seed, "mean": float(np.mean(scores)), "deviation": deviation}


def _best(by_point: ByPoint, name: str = "") -> dict[str, Any]:
    """Returns the run with the best seed of the best point, or for a task its student."""
    alike = max(by_point.values(), key=lambda alike: rank(_summary(alike)))
    trial, entry = max(alike, key=lambda scored: quality(scored[1]))
    return {"run": str(trial.folder / name), "score": quality(entry), "metric": _metric(entry)}


def _metric(entry: Entry) -> str:
    """Returns the name of what `quality` measures, for tables."""
    found = best_epoch.deciding(entry["metrics"])
    return f"{found[0]} {found[1]}" if found else "epochs"
