"""The page of a run: what it was trained from and how, how good it is, and where it differs from its teacher."""

from pathlib import Path
from typing import Any

from distill.apps.config import ReportConfig
from distill.apps.report import charts
from distill.apps.report.dev_rows import certificate_sections, dev_sections, scores_section
from distill.apps.report.page import Page, Picture, Section, Table
from pipeline.console import size
from pipeline.errors import DataError, FingerprintMismatchError, IntegrityError
from pipeline.query.mixture import open_sets
from pipeline.sets.reader import ExampleSet
from pipeline.training.run_record import RUN_RECORD, STUDENTS, RunRecord, read_run_record
from student.describe import describe_config
from student.model.config_file import is_pretrained, read_config
from student.model.weights import CONFIG_FILE
from student.trained_sets import trained_sets

VALIDATION = {
    "gold_loss": "words",
    "teacher_loss": "teacher",
}
CONTROL = {
    "mean_features_loss": "with the mean features at every position",
    "other_features_loss": "with the features of a random other position",
    "unigram_loss": "the frequencies of training words",
    "context_gain": "what the context gives: frequencies less student",
}


def run_page(config: ReportConfig, folder: Path) -> Page:
    """Describes a finished run; of several tasks each with its scores.

    Its set is read again for the pictures of the dev splits; if it is gone, the page says so and does without.

    Raises:
        IntegrityError: if the run is damaged or not finished.
    """
    record = finished_record(folder / RUN_RECORD)
    name = folder.resolve().name
    if STUDENTS in record:
        return joint_page(folder, record)
    if is_pretrained(folder):
        return pretrained_page(name, record)
    student_config = read_config(folder / CONFIG_FILE)
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


def finished_record(path: Path) -> RunRecord:
    """Reads the record of a run or a sweep.

    Raises:
        IntegrityError: if it is damaged or not finished.
    """
    record = read_run_record(path)
    if record["state"] != "finished":
        command = record["command"]
        raise IntegrityError(f"{path.parent}: not finished yet; repeat its command to finish it:\n  {command}")
    return record


def trained_set(config: ReportConfig, record: RunRecord) -> tuple[ExampleSet | None, str]:
    """The set that a run was trained on, or its mixture, if all of it is still there; else None, and why."""
    try:
        paths = trained_sets(record, config.store)
    except (DataError, FingerprintMismatchError) as error:
        return None, f"There is no more here than the record of the run: {error}."
    return open_sets(paths, record["settings"].get("mix"), config.allow_unverified), ""


def _facts(record: RunRecord, made_of: dict[str, Any]) -> dict[str, Any]:
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
    told = {"logit_set_fingerprints", "rows", "rows_sha256", "query"}
    return {name: value for name, value in settings.items() if value is not None and name not in told}


def joint_page(folder: Path, record: RunRecord) -> Page:
    """Describes the students that one training made, which have a page of their own each.

    Args:
        folder: of the run.
        record: its record, finished.
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


def pretrained_page(name: str, record: RunRecord) -> Page:
    """Losses by step, and what was held out."""
    settings, history = record["settings"], record["result"]["history"]
    steps = [entry["step"] for entry in history]
    held_out: list[dict[str, float]] = [next(iter(entry["metrics"].values()), {}) for entry in history]
    losses = {"training": [entry["loss"] for entry in history]}
    losses |= {
        f"held out: {words}": [scores[key] for scores in held_out]
        for key, words in VALIDATION.items()
        if key in held_out[-1]
    }
    caption = "Cross-entropy (nats) with the masked words and with the teacher; in training with both."
    if "vector_loss" in settings:
        caption = f"Distance from the teacher's vectors ({settings['vector_loss']})."
    drawn = [_curves("Loss", steps, losses, caption)]
    if "masked_accuracy" in held_out[-1]:
        accuracy = {"masked accuracy": [scores["masked_accuracy"] for scores in held_out]}
        drawn.append(_curves("Masked accuracy", steps, accuracy, "Share of the held-out masked words that it guesses."))
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
    """What the student owes to the context, if the run has told it."""
    if not control:
        return []
    lines = [("the student", scores["gold_loss"]), *((words, control[key]) for key, words in CONTROL.items())]
    return [Table("Guessing without the context", ("loss of the held-out masked words, nats", ""), lines)]


def _curves(title: str, steps: list[int], lines: dict[str, list[float]], caption: str) -> Picture:
    rows = [{"step": step} | {name: values[k] for name, values in lines.items()} for k, step in enumerate(steps)]
    return Picture(title, charts.curves(steps, lines, "step"), caption, rows)


def training_section(result: dict[str, Any], evaluation: dict[str, Any]) -> Section:
    """Loss and dev scores by epoch, with the epoch that was kept."""
    history, best = result["history"], result["best"]["epoch"]
    epochs = [entry["epoch"] for entry in history]
    losses = [entry["loss"] for entry in history]
    caption = f"Mean loss of the training rows. The circle is the epoch that was kept, {best}."
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
    caption = f"Scores after each epoch. The circle is the epoch that was kept, by {chosen_by or first}."
    if levels:
        caption += f" Dashed: {first} of the teacher and of guessing."
    return Picture("Dev scores", charts.curves(epochs, lines, "epoch", best, levels), caption, rows)


def _levels(evaluation: dict[str, Any]) -> dict[str, float]:
    """What the teacher and guessing reach by the metric that decides."""
    names = {"teacher": "teacher", "guessing": "majority"}
    for parts in evaluation.values():
        return {name: next(iter(parts[key].values())) for name, key in names.items() if parts.get(key)}
    return {}
