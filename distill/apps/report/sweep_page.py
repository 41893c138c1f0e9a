"""The page of a sweep: every point of the grid, and what the scores cost in size and in speed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from distill.apps.config import ReportConfig
from distill.apps.report import charts
from distill.apps.report.dev_rows import SpeedTest, machine
from distill.apps.report.page import Page, Picture, Section, Table
from distill.apps.report.run_page import finished_record, trained_set
from pipeline.training.run_record import RUN_RECORD, SWEEP_RECORD, read_run_record
from student.describe import describe_config
from student.model.config_file import read_config
from student.model.weights import CONFIG_FILE
from student.summary import point_table
from student.sweep.grid import run_name
from student.sweep.run import rank

Point = dict[str, Any]
Groups = list[tuple[str, float, list[float]]]
NO_SCORES: Point = {"scores": {}}


def sweep_page(config: ReportConfig, folder: Path) -> Page:
    """Describes a finished sweep; of several tasks the pictures are drawn of each.

    Speeds are measured now, on the dev rows of its set; without the set the page does without them.

    Raises:
        IntegrityError: if the sweep is damaged or not finished.
    """
    record = finished_record(folder / SWEEP_RECORD)
    result = record["result"]
    facts = {"command": record["command"]} | {k: v for k, v in record["settings"].items() if v is not None}
    tables = (_table(result), *_best_of_tasks(result), *_failures(result["failed"]))
    sections = (
        Section("Scores", tables=tables),
        *_drawn(config, folder, result),
        Section("Settings they share", facts=facts),
    )
    return Page("sweep", folder.resolve().name, _lead(result), sections)


def _lead(result: dict[str, Any]) -> str:
    points, metric = result["points"], result["metric"]
    count = sum(len(point["scores"]) for point in points)
    if result["best"] is None:
        return f"{count} runs, of different tasks."
    best = ", ".join(f"{name} {value}" for name, value in points[0]["values"].items())
    what = "runs of several tasks" if "best_by_task" in result else "students"
    return f"{count} {what}. The best by {metric}: {best or 'all are alike'}, {points[0]['mean']:.4f} on average."


def _drawn(config: ReportConfig, folder: Path, result: dict[str, Any]) -> list[Section]:
    """What the scores cost, and which values they go with; of several tasks for each."""
    points, metric = result["points"], result["metric"]
    if "best_by_task" not in result:
        runs = [_a_run(folder, point) for point in points]
        return [_costs(config, points, runs, metric), _values("By value", points, metric)]
    sections = [_values("By value", points, metric)] if result["best"] else []
    for name, best in result["best_by_task"].items():
        own = [point | point["by_task"].get(name, NO_SCORES) for point in points]
        runs = [_a_run(folder, point, name) for point in own]
        costs = _costs(config, own, runs, best["metric"])
        sections += [replace(costs, title=f"{costs.title}: {name}")]
        sections += [_values(f"By value: {name}", [point for point in own if point["scores"]], best["metric"])]
    return [section for section in sections if section.text or section.pictures]


def _a_run(folder: Path, point: Point, task: str = "") -> Path | None:
    """A student of a point that is still there; its seeds have the same size and speed."""
    runs = [folder / run_name(point["values"] | {"seed": seed}) / task for seed in point["scores"]]
    return next((run for run in runs if (run / CONFIG_FILE).is_file()), None)


def _table(result: dict[str, Any]) -> Table:
    columns, rows = point_table(result)
    tried = len(result["points"][0]["values"])
    numbered = [(number, *map(str, row[:tried]), *row[tried:]) for number, row in enumerate(rows, 1)]
    caption = "Mean and standard deviation over the seeds. The pictures below call each line by its number."
    return Table(result["metric"], ("no.", *columns), numbered, caption)


def _best_of_tasks(result: dict[str, Any]) -> list[Table]:
    rows = [(name, *best.values()) for name, best in result.get("best_by_task", {}).items()]
    return [Table("Best of each task", ("task", "run", "score", "metric"), rows)] if rows else []


def _failures(failed: dict[str, str]) -> list[Table]:
    return [Table("Failed", ("run", "why"), list(failed.items()))] if failed else []


def _costs(config: ReportConfig, points: list[Point], runs: list[Path | None], metric: str) -> Section:
    existing = [run for run in runs if run is not None]
    if not existing:
        return Section("What the scores cost", "The folders of the runs are gone, and with them sizes and speeds.")
    logit_set, missing = trained_set(config, read_run_record(existing[0] / RUN_RECORD))
    caption = "A dot a run, a large one at the mean of the seeds, with its number in the table. Better: up and to the"
    sizes = [None if run is None else _num_parameters(run) for run in runs]
    drawn = [_cost("Score against size", points, sizes, "parameters", metric, f"{caption} left.")]
    if logit_set is not None:
        test = SpeedTest(logit_set)
        speeds = [None if run is None else test.measure(run) for run in runs]
        caption += f" right. Measured on {test.num_rows:,} rows of {test.split}, {machine()}."
        drawn.append(_cost("Score against speed", points, speeds, "rows a second", metric, caption))
    return Section("What the scores cost", missing, pictures=tuple(drawn))


def _num_parameters(run: Path) -> float:
    return float(describe_config(read_config(run / CONFIG_FILE))["parameters"]["total"])


def _cost(
    title: str, points: list[Point], costs: list[float | None], xlabel: str, metric: str, caption: str
) -> Picture:
    groups: Groups = [
        (str(number), cost, list(point["scores"].values()))
        for number, (point, cost) in enumerate(zip(points, costs, strict=True), 1)
        if cost is not None
    ]
    rows = [{"no.": label, xlabel: cost, metric: scores} for label, cost, scores in groups]
    best = points.index(max((point for point in points if point["scores"]), key=rank)) + 1
    return Picture(title, charts.points(groups, str(best), xlabel, metric), f"{caption} The best is blue.", rows)


def _values(title: str, points: list[Point], metric: str) -> Section:
    """One picture per setting that takes more than one value."""
    drawn = []
    for name in points[0]["values"]:
        groups: dict[str, list[float]] = {}
        for point in sorted(points, key=lambda point: _order(point["values"][name])):
            groups.setdefault(str(point["values"][name]), []).extend(point["scores"].values())
        if len(groups) > 1:
            rows = [{name: value, metric: scores} for value, scores in groups.items()]
            caption = f"Each dot is a run, the bar the mean of those with this {name.replace('_', ' ')}."
            drawn.append(Picture(name.replace("_", " "), charts.strips(groups, name, metric), caption, rows))
    return Section(title, pictures=tuple(drawn))


def _order(value: Any) -> tuple[bool, float, str]:
    """A key that sorts values: numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return (not is_number, float(value) if is_number else 0.0, str(value))
