"""The pages of a run, of a sweep, and of ``distill masked-words``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from distill.apps.app_settings import ReportSettings
from distill.apps.report import charts
from distill.apps.report.dev_rows import SpeedTest, certificate_sections, dev_sections, machine, scores_section
from distill.apps.report.page import Page, Picture, Section, Table, clipped
from pipeline.arrays import Floats64
from pipeline.console import size
from pipeline.errors import DataError, FingerprintMismatchError, IntegrityError
from pipeline.file_names import CONFIG_FILE, RUN_RECORD, SWEEP_RECORD
from pipeline.record_file import Record, read_work_record
from pipeline.sets.open import LogitSet
from pipeline.tasks.metrics import spearmanr
from pipeline.training.run_record import STUDENTS
from student.describe import describe_config
from student.lessons import kind_of_set
from student.model.config_file import is_pretrained, read_task_config
from student.summary import leading, point_name, point_table, tie
from student.sweep.grid import run_name
from student.trained_sets import trained_sets
from student.word_importance import RESULT_COLUMNS, MaskedRow, MaskedWords, result_rows

VALIDATION = {
    "gold_loss": "words",
    "teacher_loss": "teacher",
}
CONTROL = {
    "mean_features_loss": "with the mean features at every position",
    "other_features_loss": "with the features of a random other position",
    "unigram_loss": "the frequencies of training words",
    "context_gain": "gain from the context: frequencies less student",
}


def run_page(config: ReportSettings, folder: Path) -> Page:
    """Returns the page of a finished run. A run of several tasks has a section for each.

    Its set is read again for the pictures of the dev splits. If it no longer exists, the page reports that instead.

    Raises:
        IntegrityError: if the run is damaged or not finished.
    """
    record = finished_record(folder / RUN_RECORD)
    name = folder.resolve().name
    # A run of several tasks has no weights of its own, only one folder per task.
    if STUDENTS in record:
        return joint_page(folder, record)
    if is_pretrained(folder):
        return pretrained_page(name, record)
    student_config = read_task_config(folder / CONFIG_FILE)
    logit_set, missing = trained_set(config, record)
    evaluation = record["result"]["evaluation"]
    sections = (
        Section("What it is", facts=_facts(record, describe_config(student_config))),
        training_section(record["result"], evaluation),
        scores_section(evaluation),
        *certificate_sections(folder),
        *(dev_sections(folder, logit_set) if logit_set else [Section("Dev splits", missing)]),
        Section("Settings", facts=_settings(record["settings"])),
    )
    lead = f"A student of {student_config.task}, trained on {record['settings']['rows']:,} rows."
    return Page("run", name, lead, sections)


def finished_record(path: Path) -> Record:
    """Reads the record of a run or a sweep.

    Raises:
        IntegrityError: if it is damaged or not finished.
    """
    record = read_work_record(path)
    if record["state"] != "finished":
        command = record["command"]
        raise IntegrityError(f"{path.parent}: not finished yet. Repeat its command to finish it:\n  {command}")
    return record


def trained_set(config: ReportSettings, record: Record) -> tuple[LogitSet | None, str]:
    """Returns the set or the mixture that a run was trained on.

    If a part of it is missing, returns None and the reason.
    """
    try:
        paths = trained_sets(record, config.store)
    except (DataError, FingerprintMismatchError) as error:
        return None, f"The page contains only the record of the run: {error}."
    return kind_of_set(paths[0]).open_sets(paths, record["settings"].get("mix"), config.allow_unverified), ""


def _facts(record: Record, made_of: dict[str, Any]) -> dict[str, Any]:
    settings, result = record["settings"], record["result"]
    architecture: dict[str, Any] = made_of["architecture"]
    return architecture | {
        "parameters": made_of["parameters"]["total"],
        "size": size(made_of["bytes"]),
        "logit set": ", ".join(record["logit_sets"]),
        "its fingerprint": ", ".join(settings["logit_set_fingerprints"]),
        "training rows": settings["rows"],
        "query": settings["query"],
        "hash of the rows": settings["rows_sha256"],
        "command": record["command"],
        "written with": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    shown_elsewhere = {"logit_set_fingerprints", "rows", "rows_sha256", "query"}
    return {name: value for name, value in settings.items() if value is not None and name not in shown_elsewhere}


def joint_page(folder: Path, record: Record) -> Page:
    """Returns the page of a training of several tasks, whose students have separate pages.

    Args:
        folder: the folder of the run.
        record: the record of the finished run.
    """
    names, result = record[STUDENTS], record["result"]
    pages = "\n".join(f"distill report {folder / name}" for name in names)
    about = {"logit sets": ", ".join(record["logit_sets"]), "command": record["command"], "pages": pages}
    sections = (
        Section("What it is", facts=about),
        training_section(result, {}),
        scores_section(result["evaluation"]),
        Section("Settings", facts={name: value for name, value in record["settings"].items() if value is not None}),
    )
    lead = f"Students of {', '.join(names)} with one encoder, each with a folder and a page of its own."
    return Page("run of several tasks", folder.resolve().name, lead, sections)


def pretrained_page(name: str, record: Record) -> Page:
    """Returns the losses by step, and the scores on held-out rows."""
    settings, history = record["settings"], record["result"]["history"]
    steps = [entry["step"] for entry in history]
    held_out: list[dict[str, float]] = [next(iter(entry["metrics"].values()), {}) for entry in history]
    losses = {"training": [entry["loss"] for entry in history]}
    losses |= {
        f"held out: {words}": [scores[key] for scores in held_out]
        for key, words in VALIDATION.items()
        if key in held_out[-1]
    }
    caption = "Cross-entropy (nats) to the masked words and to the teacher. The training loss combines both."
    if "vector_loss" in settings:
        caption = f"Distance from the teacher's vectors ({settings['vector_loss']})."
    drawn = [_curves("Loss", steps, losses, caption)]
    if "masked_accuracy" in held_out[-1]:
        accuracy = {"masked accuracy": [scores["masked_accuracy"] for scores in held_out]}
        drawn.append(
            _curves("Masked accuracy", steps, accuracy, "Share of the held-out masked words that the student predicts.")
        )
    if "cosine" in held_out[-1]:
        names = ("cosine", "cosine_of_mean_vector", "similarity_correlation")
        close = {
            name.replace("_", " "): [scores[name] for scores in held_out] for name in names if name in held_out[-1]
        }
        drawn.append(
            _curves("Held-out vectors", steps, close, "Cosine with the teacher's vectors, and that of their mean.")
        )
    last = [(key.replace("_", " "), value) for key, value in held_out[-1].items()]
    end = Table("At the end, on held-out rows", ("", "student"), last)
    context = _context(held_out[-1], history[-1]["metrics"].get("control", {}))
    facts = {"logit set": record["logit_set"], "command": record["command"]}
    facts |= {key: value for key, value in settings.items() if value is not None} | {"codec": settings["codec"]["name"]}
    sections = (
        Section("Training", pictures=tuple(drawn), tables=(end, *context)),
        Section("What it is", facts=facts),
    )
    return Page("pretraining run", name, f"A student pretrained for {settings['steps']:,} steps.", sections)


def _context(scores: dict[str, float], control: dict[str, float]) -> list[Table]:
    """Returns how much the context improves the predictions, if the run recorded it."""
    if not control:
        return []
    lines = [("the student", scores["gold_loss"]), *((words, control[key]) for key, words in CONTROL.items())]
    return [Table("Guessing without the context", ("loss of the held-out masked words, nats", ""), lines)]


def _curves(title: str, steps: list[int], lines: dict[str, list[float]], caption: str) -> Picture:
    rows = [{"step": step} | {name: values[k] for name, values in lines.items()} for k, step in enumerate(steps)]
    return Picture(title, charts.curves(steps, lines, "step"), caption, rows)


def training_section(result: dict[str, Any], evaluation: dict[str, Any]) -> Section:
    """Returns the loss and the dev scores by epoch, with the saved epoch."""
    history, best = result["history"], result["best"]["epoch"]
    epochs = [entry["epoch"] for entry in history]
    losses = [entry["loss"] for entry in history]
    caption = f"Mean loss of the training rows. The circle marks the saved epoch, {best}."
    rows = [{"epoch": epoch, "loss": loss} for epoch, loss in zip(epochs, losses, strict=True)]
    drawn = [Picture("Loss", charts.curves(epochs, {"training loss": losses}, "epoch", best), caption, rows)]
    if any(history[0]["metrics"].values()):
        drawn.append(_dev_scores(history, best, _levels(evaluation), result.get("chosen_by")))
    return Section("Training", pictures=tuple(drawn))


def _dev_scores(history: list[dict[str, Any]], best: int, levels: dict[str, float], chosen_by: str | None) -> Picture:
    epochs = [entry["epoch"] for entry in history]
    lines = {
        f"{split} {name}".replace("_", " "): [entry["metrics"][split][name] for entry in history]
        for split, metrics in history[0]["metrics"].items()
        for name in metrics
    }
    rows = [{"epoch": epoch} | {name: line[k] for name, line in lines.items()} for k, epoch in enumerate(epochs)]
    first = next(iter(lines))
    caption = f"Scores after each epoch. The circle marks the saved epoch, selected by {chosen_by or first}."
    if levels:
        caption += f" Dashed: {first} of the teacher and of guessing."
    return Picture("Dev scores", charts.curves(epochs, lines, "epoch", best, levels), caption, rows)


def _levels(evaluation: dict[str, Any]) -> dict[str, float]:
    """Returns the scores of the teacher and of guessing by the metric that chooses the epoch."""
    names = {"teacher": "teacher", "guessing": "majority"}
    for parts in evaluation.values():
        return {name: next(iter(parts[key].values())) for name, key in names.items() if parts.get(key)}
    return {}


Point = dict[str, Any]
Groups = list[tuple[str, float, list[float]]]
NO_SCORES: Point = {"scores": {}}


def sweep_page(config: ReportSettings, folder: Path) -> Page:
    """Returns the page of a finished sweep. A sweep of several tasks has pictures of each.

    Speeds are measured on the dev rows of the set when the page is written. Without the set, they are left out.

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
    what = "runs of several tasks" if "best_by_task" in result else "students"
    tied = tie(points)
    if tied is not None:
        return f"{count} {what}. There is no clear best by {metric}: {tied}."
    best = point_name(points[0]) or "all are alike"
    # One seed has no average.
    average = " on average" if len(points[0]["scores"]) > 1 else ""
    return f"{count} {what}. The best by {metric}: {best}, {points[0]['mean']:.4f}{average}."


def _drawn(config: ReportSettings, folder: Path, result: dict[str, Any]) -> list[Section]:
    """Returns sections with the cost of the scores and the scores by setting, for each task."""
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


def _best_of_tasks(result: dict[str, Any]) -> list[Table]:
    rows = [(name, *best.values()) for name, best in result.get("best_by_task", {}).items()]
    return [Table("Best of each task", ("task", "run", "score", "metric"), rows)] if rows else []


def _failures(failed: dict[str, str]) -> list[Table]:
    return [Table("Failed", ("run", "why"), list(failed.items()))] if failed else []


def _costs(config: ReportSettings, points: list[Point], runs: list[Path | None], metric: str) -> Section:
    existing = [run for run in runs if run is not None]
    if not existing:
        return Section(
            "What the scores cost", "The folders of the runs no longer exist, so sizes and speeds are unknown."
        )
    logit_set, missing = trained_set(config, read_work_record(existing[0] / RUN_RECORD))
    caption = (
        "Each dot is a run. A large dot is the mean over seeds, with its number in the table. Better: up and to the"
    )
    sizes = [None if run is None else _num_parameters(run) for run in runs]
    drawn = [_cost("Score against size", points, sizes, "parameters", metric, f"{caption} left.")]
    # Speed needs rows to predict. Sizes can be read from the runs alone.
    if logit_set is not None:
        test = SpeedTest(logit_set)
        speeds = [None if run is None else test.measure(run) for run in runs]
        caption += f" right. Measured on {test.num_rows:,} rows of {test.split}, {machine()}."
        drawn.append(_cost("Score against speed", points, speeds, "rows a second", metric, caption))
    return Section("What the scores cost", missing, pictures=tuple(drawn))


def _num_parameters(run: Path) -> float:
    return float(describe_config(read_task_config(run / CONFIG_FILE))["parameters"]["total"])


def _cost(
    title: str, points: list[Point], costs: list[float | None], xlabel: str, metric: str, caption: str
) -> Picture:
    groups: Groups = [
        (str(number), cost, list(point["scores"].values()))
        for number, (point, cost) in enumerate(zip(points, costs, strict=True), 1)
        if cost is not None
    ]
    rows = [{"no.": label, xlabel: cost, metric: scores} for label, cost, scores in groups]
    ahead = leading([point for point in points if point["scores"]])
    best = {str(number) for number, point in enumerate(points, 1) if point in ahead}
    which = "The best is blue." if len(best) == 1 else "The best are blue. Their differences may be chance."
    return Picture(title, charts.points(groups, best, xlabel, metric), f"{caption} {which}", rows)


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


MOST_PICTURES = 6
# Rows with fewer or more words are not drawn.
FEWEST_WORDS, MOST_WORDS = 4, 30
HOW_TO_READ = (
    "Blue: removing the word lowers the confidence of the prediction (regression: changes the score). Orange: "
    "it raises the confidence. Each column has its own scale."
)


def masked_words_page(compared: MaskedWords) -> Page:
    """Returns the table of all runs, and rows in the order of the first run's agreement with its teacher."""
    results = Table("Importance of words", RESULT_COLUMNS, result_rows(compared), _caption())
    pictures = tuple(_picture(compared, number) for number in _chosen(compared))
    sections = (Section("Students and their teacher", tables=(results,)), Section("Word by word", pictures=pictures))
    lead = f"The importance of {compared.amount} to their teacher and to students."
    return Page("masked words", compared.set_name, lead, sections)


def _caption() -> str:
    return (
        "Spearman's rank correlation of the importance of words to the student and to its teacher, averaged "
        "over rows. The last share counts rows where both have the same most important word. Shuffled: the "
        "same numbers with the teacher's words of each row in random order."
    )


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
    words = [word.text for word in row.words]
    drawn = charts.shades(words, {name: values.tolist() for name, values in columns.items()})
    title = f"Row {row.source_row}: {clipped(' | '.join(row.texts), 60)}"
    return Picture(title, drawn, HOW_TO_READ, _figures(row, columns))


def _figures(row: MaskedRow, columns: Mapping[str, Floats64]) -> list[dict[str, object]]:
    return [
        {"word": word.text, "sentence": word.side + 1} | {name: float(values[n]) for name, values in columns.items()}
        for n, word in enumerate(row.words)
    ]
