"""What came of a sweep: scores by point of its grid, of several tasks also by task, and the best runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import DistillError
from pipeline.training.joint import entry_of
from pipeline.training.run_record import RUN_RECORD, STUDENTS, Entry, RunRecord, deciding, quality, read_run_record
from student.sweep.grid import Trial

Scored = tuple[Trial, Entry]  # with its best epoch, or what that says of one task
ByPoint = dict[tuple[Any, ...], list[Scored]]


def outcome(trials: Sequence[Trial], failed: Mapping[str, str]) -> dict[str, Any]:
    """The result of a sweep for its record, see `student.sweep.run.sweep`.

    Args:
        trials: all of the grid.
        failed: what was wrong, by the name of the run.

    Raises:
        DistillError: if no run is finished.
    """
    records = [(trial, _record(trial)) for trial in trials if trial.is_finished]
    if not records:
        raise DistillError(
            "no run of the sweep came to its end:\n" + "\n".join(f"  - {k}: {v}" for k, v in failed.items())
        )
    whole = _by_point([(trial, record["result"]["best"]) for trial, record in records])
    by_task = {name: _by_point(scored) for name, scored in _of_tasks(records).items()}
    points = [_point(point, whole, by_task) for point in whole]
    best: dict[str, Any] | None = None
    metric = "scores by task"  # means of different tasks are not compared
    if "tasks" not in trials[0].values:
        points.sort(key=rank, reverse=True)
        best = _best(whole)
        metric = best.pop("metric")
    result = {"metric": metric, "points": points, "best": best, "failed": dict(failed)}
    of_tasks = {name: _best(of_task, name) for name, of_task in by_task.items()}
    return result | ({"best_by_task": of_tasks} if any(STUDENTS in record for _, record in records) else {})


def score_of(trial: Trial) -> float:
    """What a trial is judged by: the best epoch's first metric, of several tasks the mean of theirs."""
    return quality(_record(trial)["result"]["best"])


def rank(scores: Mapping[str, Any]) -> tuple[int, float]:
    """A key that is greater for better scores of a point; those of all seeds come before others."""
    return len(scores["scores"]), scores["mean"]


def _record(trial: Trial) -> RunRecord:
    return read_run_record(trial.folder / RUN_RECORD)


def _of_tasks(records: Sequence[tuple[Trial, RunRecord]]) -> dict[str, list[Scored]]:
    """What the best epochs say of each task that has gold in dev; empty for runs of one task."""
    found: dict[str, list[Scored]] = {}
    for trial, record in records:
        for name in record.get(STUDENTS, ()):
            entry = entry_of(name, record["result"]["best"])
            if any(entry["metrics"].values()):
                found.setdefault(name, []).append((trial, entry))
    return found


def _by_point(scored: Sequence[Scored]) -> ByPoint:
    """Trials that differ in their seeds alone, together."""
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
    deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
    return {"scores": by_seed, "mean": float(np.mean(scores)), "deviation": deviation}


def _best(by_point: ByPoint, name: str = "") -> dict[str, Any]:
    """The best seed of the best point, of a task its student."""
    alike = max(by_point.values(), key=lambda alike: rank(_summary(alike)))
    trial, entry = max(alike, key=lambda scored: quality(scored[1]))
    return {"run": str(trial.folder / name), "score": quality(entry), "metric": _metric(entry)}


def _metric(entry: Entry) -> str:
    """Returns the name of what `quality` measures, for tables."""
    found = deciding(entry["metrics"])
    return f"{found[0]} {found[1]}" if found else "epochs"
