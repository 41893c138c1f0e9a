"""The pages that compare students: of a sweep, of a cascade, and of ``distill masked-words``."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import torch

from distill.apps.app_settings import ReportSettings
from distill.apps.report import charts
from distill.apps.report.page import Page, Picture, Section, Table, clipped
from distill.apps.report.run_page import finished_record, trained_set
from distill.apps.timing import processor
from pipeline.file_names import CONFIG_FILE, RUN_RECORD, SWEEP_RECORD
from pipeline.record_file import read_work_record
from pipeline.sets.open import LogitSet
from pipeline.tasks.metrics import spearmanr
from student.cascade.cascade_file import Measured, read_cascade
from student.describe import describe_config
from student.lessons import KINDS
from student.model.config_file import read_task_config
from student.model.student import default_device, load_student
from student.summary import leading, point_name, point_table, tie
from student.sweep.grid import run_name
from student.vocabulary import as_run_reads
from student.word_importance import RESULT_COLUMNS, MaskedWords, result_rows

Point = dict[str, Any]
NO_SCORES: Point = {"scores": {}}
MOST_ROWS = 2_000  # that speed is measured on
TRIES = 3


def sweep_page(settings: ReportSettings, folder: Path) -> Page:
    """Returns the page of a finished sweep. A sweep of several tasks has pictures of each.

    Speeds are measured on the dev rows of the set when the page is written. Without the set, they are left out.

    Raises:
        IntegrityError: if the sweep is damaged or not finished.
    """
    record = finished_record(folder / SWEEP_RECORD)
    result = record["result"]
    facts = {"command": record["command"]} | {k: v for k, v in record["settings"].items() if v is not None}
    best = [(name, *best.values()) for name, best in result.get("best_by_task", {}).items()]
    tables = (
        _table(result),
        Table("Best of each task", ("task", "run", "score", "metric"), best),
        Table("Failed", ("run", "why"), list(result["failed"].items())),
    )
    sections = (
        Section("Scores", tables=tuple(table for table in tables if table.rows)),
        *_drawn(settings, folder, result),
        Section("Settings they share", facts=facts),
    )
    return Page("sweep", folder.resolve().name, _lead(result), sections)


def _lead(result: dict[str, Any]) -> str:
    points, metric = result["points"], result["metric"]
    count = sum(len(point["scores"]) for point in points)
    if result["best"] is None:
        return f"{count} runs, of different tasks."
    what = "runs of several tasks" if "best_by_task" in result else "students"
    tied = tie(points)
    if tied is not None:
        return f"{count} {what}. There is no clear best by {metric}: {tied}."
    best = point_name(points[0]) or "all are alike"
    # One seed has no average.
    average = " on average" if len(points[0]["scores"]) > 1 else ""
    return f"{count} {what}. The best by {metric}: {best}, {points[0]['mean']:.4f}{average}."


def _drawn(settings: ReportSettings, folder: Path, result: dict[str, Any]) -> list[Section]:
    """Returns sections with the cost of the scores and the scores by setting, for each task."""
    points, metric = result["points"], result["metric"]
    if "best_by_task" not in result:
        runs = [_a_run(folder, point) for point in points]
        return [_costs(settings, points, runs, metric), _values("By value", points, metric)]
    sections = [_values("By value", points, metric)] if result["best"] else []
    for name, best in result["best_by_task"].items():
        own = [point | point["by_task"].get(name, NO_SCORES) for point in points]
        runs = [_a_run(folder, point, name) for point in own]
        costs = _costs(settings, own, runs, best["metric"])
        sections += [replace(costs, title=f"{costs.title}: {name}")]
        sections += [_values(f"By value: {name}", [point for point in own if point["scores"]], best["metric"])]
    return [section for section in sections if section.text or section.pictures]


def _a_run(folder: Path, point: Point, task: str = "") -> Path | None:
    """Returns one student of a point of the grid that still exists. All seeds have the same size and speed."""
    # Joining an empty task name leaves the path unchanged.
    runs = [folder / run_name(point["values"] | {"seed": seed}) / task for seed in point["scores"]]
    return next((run for run in runs if (run / CONFIG_FILE).is_file()), None)


def _table(result: dict[str, Any]) -> Table:
    columns, rows = point_table(result)
    tried = len(result["points"][0]["values"])
    numbered = [(number, *map(str, row[:tried]), *row[tried:]) for number, row in enumerate(rows, 1)]
    caption = "Mean and standard deviation over the seeds. The pictures below use the number of each line."
    return Table(result["metric"], ("no.", *columns), numbered, caption)


def _costs(settings: ReportSettings, points: list[Point], runs: list[Path | None], metric: str) -> Section:
    title, existing = "What the scores cost", [run for run in runs if run is not None]
    if not existing:
        return Section(title, "The folders of the runs no longer exist, so sizes and speeds are unknown.")
    logit_set, missing = trained_set(settings, read_work_record(existing[0] / RUN_RECORD))
    sizes = {run: describe_config(read_task_config(run / CONFIG_FILE))["parameters"]["total"] for run in existing}
    costs = {"Score against size": ("parameters", sizes, "left.")}
    # Speed needs rows to predict. Sizes can be read from the runs alone.
    if logit_set is not None:
        speeds, where = _speeds(logit_set, existing)
        costs["Score against speed"] = ("rows a second", speeds, f"right. Measured on {where}.")
    ahead = leading([point for point in points if point["scores"]])
    best = {str(number) for number, point in enumerate(points, 1) if point in ahead}
    how = "Each dot is a run. A large dot is the mean over seeds, with its number in the table. Better: up and to the"
    which = "The best is blue." if len(best) == 1 else "The best are blue. Their differences may be chance."
    drawn = []
    for name, (axis, values, better) in costs.items():
        groups = [
            (str(number), float(values[run]), list(point["scores"].values()))
            for number, (point, run) in enumerate(zip(points, runs, strict=True), 1)
            if run is not None
        ]
        drawn.append(charts.points(name, groups, best, (axis, metric), f"{how} {better} {which}"))
    return Section(title, missing, pictures=tuple(drawn))


def _speeds(logit_set: LogitSet, runs: list[Path]) -> tuple[dict[Path, float], str]:
    """Measures rows a second in large batches, on the first rows of the first dev split.

    Returns:
        The best of a few tries after a warm-up, which other programs disturbed least, and what was measured where.
    """
    # False sorts before True, so train is chosen only if there is no other split.
    split, device = min(logit_set.splits, key=lambda split: split == "train"), default_device()
    kind = KINDS[logit_set.record.kind]
    rows, speeds = (), dict[Path, float]()
    for run in runs:
        student = load_student(run).to(device)
        rows = kind.read_first(as_run_reads(logit_set, run, student.config), split, MOST_ROWS)
        predict = partial(kind.student_logits, student, kind.as_read(rows, student.config))
        predict()
        speeds[run] = len(rows) / min(repeat(predict, number=1, repeat=TRIES))
    machine = f"{processor()}, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"
    if device.type == "cuda":
        machine = f"a {torch.cuda.get_device_name()}"
    return speeds, f"{len(rows):,} rows of {split}, on {machine}"


def _values(title: str, points: list[Point], metric: str) -> Section:
    """One picture per setting that takes more than one value."""
    drawn = []
    for name in points[0]["values"]:
        groups: dict[str, list[float]] = {}
        for point in sorted(points, key=lambda point: _order(point["values"][name])):
            groups.setdefault(str(point["values"][name]), []).extend(point["scores"].values())
        if len(groups) > 1:
            setting = name.replace("_", " ")
            caption = f"Each dot is a run, the bar the mean of those with this {setting}."
            drawn.append(charts.strips(setting, groups, (name, metric), caption))
    return Section(title, pictures=tuple(drawn))


def _order(value: Any) -> tuple[bool, float, str]:
    """A key that sorts values: numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return (not is_number, float(value) if is_number else 0.0, str(value))


SCORES = {"accuracy": "accuracy", "agreement": "agreement with the last stage"}
COST = "cost (the last stage: 1)"


def cascade_page(folder: Path) -> Page:
    """Returns the page of a cascade.

    Raises:
        IntegrityError: if its file is damaged.
    """
    record = read_cascade(folder)
    named = zip(record.names, record.stages, strict=True)
    stages = [(clipped(name), stage.threshold, stage.cost) for name, stage in named]
    columns = ("stage", "answers above a margin of", "cost")
    chosen = {name: value for name, value in record.chosen.items() if isinstance(value, int | float | str)}
    facts = {name.replace("_", " "): value for name, value in chosen.items()}
    sections = (
        Section("What it is", facts=facts, tables=(Table("Stages", columns, stages),)),
        *(_split(split, measured) for split, measured in record.measured.items()),
    )
    lead = f"A cascade of {len(stages)} stages. Each answers what it is sure of and hands on the rest."
    return Page("cascade", folder.resolve().name, lead, sections)


def _split(split: str, measured: Measured) -> Section:
    scores = SCORES if measured.cascade.accuracy is not None else {"agreement": SCORES["agreement"]}
    rows: list[tuple[Any, ...]] = [
        (clipped(one.stage), one.share, one.cost, *(getattr(one, name) for name in scores)) for one in measured.stages
    ]
    rows.append(("the cascade", 1.0, measured.cascade.cost, *(getattr(measured.cascade, name) for name in scores)))
    heads = ("alone", "share of the rows that it answers", "cost", *scores.values())
    return Section(
        f"The rows of {split}",
        f"{measured.rows:,} rows, none of which chose a threshold.",
        pictures=tuple(_curve(measured, name, title) for name, title in scores.items()),
        tables=(Table("Stages and cascade", heads, rows),),
    )


def _curve(measured: Measured, score: str, title: str) -> Picture:
    named = [(one.stage, one.cost, getattr(one, score)) for one in measured.stages]
    named.append(("cascade", measured.cascade.cost, getattr(measured.cascade, score)))
    line = [(point.cost, getattr(point, score)) for point in measured.curve]
    caption = (
        "The line is the cascade with other thresholds. They were chosen on held-out training rows, so the line can "
        "fall here and there."
    )
    return charts.trade_off(f"{title.capitalize()} and cost", line, named, (COST, title), caption)


MOST_PICTURES = 6
# Rows with fewer or more words are not drawn.
FEWEST_WORDS, MOST_WORDS = 4, 30
RANKS = (
    "Spearman's rank correlation of the importance of words to the student and to its teacher, averaged over rows. "
    "The last share counts rows where both have the same most important word. Shuffled: the same numbers with the "
    "teacher's words of each row in random order."
)
HOW_TO_READ = (
    "Blue: removing the word lowers the confidence of the prediction (regression: changes the score). Orange: "
    "it raises the confidence. Each column has its own scale."
)


def masked_words_page(compared: MaskedWords) -> Page:
    """Returns the table of all runs, and rows in the order of the first run's agreement with its teacher."""
    results = Table("Importance of words", RESULT_COLUMNS, result_rows(compared), RANKS)
    pictures = tuple(_picture(compared, number) for number in _chosen(compared))
    sections = (Section("Students and their teacher", tables=(results,)), Section("Word by word", pictures=pictures))
    lead = f"The importance of {compared.amount} to their teacher and to students."
    return Page("masked words", compared.set_name, lead, sections)


def _chosen(compared: MaskedWords) -> list[int]:
    """Returns the numbers of rows to draw, spread evenly over the order of the first run's correlation."""
    drawable = [n for n, row in enumerate(compared.rows) if FEWEST_WORDS <= len(row.words) <= MOST_WORDS]
    first = next(iter(compared.students.values()))
    alike = {n: spearmanr(np.stack([compared.rows[n].importance_W, first[n]])[:, None])[0] for n in drawable}
    # Evenly spread from best to worst agreement: only the best rows would look better than the student is.
    ordered = sorted(drawable, key=lambda n: -alike[n])
    places = np.linspace(0, len(ordered) - 1, min(MOST_PICTURES, len(ordered))).round().astype(int)
    return [ordered[place] for place in places]


def _picture(compared: MaskedWords, number: int) -> Picture:
    row = compared.rows[number]
    columns = {"teacher": row.importance_W} | {
        Path(run).resolve().name: of[number] for run, of in compared.students.items()
    }
    title = f"Row {row.source_row}: {clipped(' | '.join(row.texts), 60)}"
    values = {name: importance_W.tolist() for name, importance_W in columns.items()}
    return charts.shades(title, [word.text for word in row.words], values, HOW_TO_READ)
