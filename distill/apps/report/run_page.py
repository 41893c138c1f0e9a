"""The page of a run: its scores, and its predictions for the dev rows of its set, compared with its teacher's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distill.apps.app_settings import ReportSettings
from distill.apps.baseline import add_baseline
from distill.apps.report import charts, predictions
from distill.apps.report.page import Page, Picture, Rows, Section, Table
from distill.apps.report.predictions import SHOWN_ROWS, Predictions
from distill.apps.score_advice import judge
from pipeline.console import size
from pipeline.errors import ConfigError, DataError, DistillError, FingerprintMismatchError, IntegrityError
from pipeline.file_names import CONFIG_FILE, RUN_RECORD
from pipeline.record_file import Record, read_work_record
from pipeline.sets.file_columns import with_file_columns
from pipeline.sets.kinds.examples import KEYS, ORIGINALS, keys_sha256
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.sets.open import LogitSet
from pipeline.sets.record_parts import KindName
from pipeline.tasks.metrics import confusion_of_labels
from pipeline.tasks.target import NO_LABEL, softmax
from pipeline.tasks.temperature import calibrated
from pipeline.training.run_record import STUDENTS, Entry
from student.data import Examples
from student.describe import describe_config
from student.evaluate import dev_examples
from student.lessons import kind_of_set
from student.lessons.examples import student_logits
from student.lessons.token_labels import logits_of_tokens
from student.model.config_file import is_pretrained, read_task_config
from student.model.student import Student, TaskStudent, TokenLabelStudent, default_device, load_student
from student.predict.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from student.run_settings import EvaluateSettings
from student.summary import evaluation_tables
from student.trained_sets import trained_sets

SHOWN_ELSEWHERE = {"logit_set_fingerprints", "rows", "rows_sha256", "query"}  # settings
LEVELS = {"teacher": "teacher", "guessing": "majority"}
VALIDATION = {
    "gold_loss": "words",
    "teacher_loss": "teacher",
}
HELD_OUT = {
    "Masked accuracy": (("masked_accuracy",), "Share of the held-out masked words that the student predicts."),
    "Held-out vectors": (
        ("cosine", "cosine_of_mean_vector", "similarity_correlation"),
        "Cosine with the teacher's vectors, and that of their mean.",
    ),
}
CONTROL = {
    "mean_features_loss": "with the mean features at every position",
    "other_features_loss": "with the features of a random other position",
    "unigram_loss": "the frequencies of training words",
    "context_gain": "gain from the context: frequencies less student",
}


def run_page(settings: ReportSettings, folder: Path) -> Page:
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
    logit_set, missing = trained_set(settings, record)
    evaluation = record["result"]["evaluation"]
    warnings = _judged(settings, folder, evaluation) if logit_set else []
    sections = (
        Section("What it is", facts=_facts(record, describe_config(student_config, folder))),
        training_section(record["result"], evaluation),
        scores_section(evaluation, warnings),
        *certificate_sections(folder),
        *(dev_sections(folder, logit_set, evaluation) if logit_set else [Section("Dev splits", missing)]),
        _settings(record),
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


def trained_set(settings: ReportSettings, record: Record) -> tuple[LogitSet | None, str]:
    """Returns the set or the mixture that a run was trained on.

    If a part of it is missing, returns None and the reason.
    """
    try:
        paths = trained_sets(record, settings.store)
    except (DataError, FingerprintMismatchError) as error:
        return None, f"The page contains only the record of the run: {error}."
    return kind_of_set(paths[0]).open_sets(paths, record["settings"].get("mix"), settings.allow_unverified), ""


def _facts(record: Record, made_of: dict[str, Any]) -> dict[str, Any]:
    settings, result = record["settings"], record["result"]
    architecture: dict[str, Any] = made_of["architecture"]
    facts = architecture | {
        "parameters": made_of["parameters"]["total"],
        "weights on disk": size(made_of["bytes"]),
        "logit set": ", ".join(record["logit_sets"]),
        "its fingerprint": ", ".join(settings["logit_set_fingerprints"]),
        "training rows": settings["rows"],
        "query": settings["query"],
        "hash of the rows": settings["rows_sha256"],
        "command": record["command"],
        "written with": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _settings(record: Record) -> Section:
    shown = {k: v for k, v in record["settings"].items() if v is not None and k not in SHOWN_ELSEWHERE}
    return Section("Settings", facts=shown)


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
        _settings(record),
    )
    lead = f"Students of {', '.join(names)} with one encoder, each with a folder and a page of its own."
    return Page("run of several tasks", folder.resolve().name, lead, sections)


def pretrained_page(name: str, record: Record) -> Page:
    """Returns the losses by step, and the scores on held-out rows."""
    settings, history = record["settings"], record["result"]["history"]
    held_out: list[dict[str, float]] = [next(iter(entry["metrics"].values()), {}) for entry in history]
    losses = {"training": [entry["loss"] for entry in history]}
    last, control = held_out[-1], history[-1]["metrics"].get("control", {})
    losses |= {f"held out: {words}": [one[key] for one in held_out] for key, words in VALIDATION.items() if key in last}
    caption = "Cross-entropy (nats) to the masked words and to the teacher. The training loss combines both."
    if "vector_loss" in settings:
        caption = f"Distance from the teacher's vectors ({settings['vector_loss']})."
    drawn = [_curves("Loss", history, losses, caption)]
    for title, (names, caption) in HELD_OUT.items():
        lines = {name.replace("_", " "): [one[name] for one in held_out] for name in names if name in last}
        if lines:
            drawn.append(_curves(title, history, lines, caption))
    end = [(name.replace("_", " "), value) for name, value in last.items()]
    tables = [Table("At the end, on held-out rows", ("", "student"), end)]
    if control:
        rows = [("the student", last["gold_loss"]), *((words, control[key]) for key, words in CONTROL.items())]
        columns = ("loss of the held-out masked words, nats", "")
        tables.append(Table("Guessing without the context", columns, rows))
    facts = {"logit set": record["logit_set"], "command": record["command"]}
    facts |= {key: value for key, value in settings.items() if value is not None} | {"codec": settings["codec"]["name"]}
    sections = (
        Section("Training", pictures=tuple(drawn), tables=tuple(tables)),
        Section("What it is", facts=facts),
    )
    return Page("pretraining run", name, f"A student pretrained for {settings['steps']:,} steps.", sections)


def _curves(
    title: str,
    history: list[Entry],
    lines: dict[str, list[float]],
    caption: str,
    best: int | None = None,
    levels: dict[str, float] | None = None,
) -> Picture:
    """Lines over the epochs or steps of a history."""
    unit = next(iter(history[0]))
    return charts.curves(title, [entry[unit] for entry in history], lines, unit, caption, best, levels)


def training_section(result: dict[str, Any], evaluation: dict[str, Any]) -> Section:
    """Returns the loss and the dev scores by epoch, with the saved epoch."""
    history, best = result["history"], result["best"]["epoch"]
    caption = f"Mean loss of the training rows. The circle marks the saved epoch, {best}."
    drawn = [_curves("Loss", history, {"loss": [entry["loss"] for entry in history]}, caption, best)]
    lines = {
        f"{split} {name}".replace("_", " "): [entry["metrics"][split][name] for entry in history]
        for split, metrics in history[0]["metrics"].items()
        for name in metrics
    }
    if lines:
        first = next(iter(lines))
        parts: dict[str, Any] = next(iter(evaluation.values()), {})
        # By the metric that chooses the epoch, which is the first.
        levels = {name: next(iter(parts[key].values())) for name, key in LEVELS.items() if parts.get(key)}
        caption = "Scores after each epoch. The circle marks the saved epoch, selected by "
        caption += f"{result.get('chosen_by') or first}."
        whose = " and of ".join({"teacher": "the teacher"}.get(name, name) for name in levels)
        caption += f" Dashed: {first} of {whose}." if levels else ""
        drawn.append(_curves("Scores", history, lines, caption, best, levels))
    return Section("Training", pictures=tuple(drawn))


def _judged(settings: ReportSettings, folder: Path, evaluation: dict[str, Any]) -> list[str]:
    """Adds the baseline of `evaluate --baseline` to an evaluation, if its fit is quick, and returns the warnings."""
    hint = f"`distill evaluate {folder} --baseline` compares the student with n-grams and a linear model."
    if find_spec("sklearn") is not None:
        config = EvaluateSettings(run=folder, store=settings.store, allow_unverified=settings.allow_unverified)
        try:
            add_baseline(config, evaluation, None, is_fast=True)
        except ConfigError:  # the baseline does not suit the task
            hint = ""
    found = [f"{split}: {line}" for split, parts in evaluation.items() for line in judge(parts)]
    return found if not hint or any("baseline" in parts for parts in evaluation.values()) else [*found, hint]


def scores_section(evaluation: dict[str, Any], warnings: Sequence[str] = ()) -> Section:
    """Scores against gold, the teacher and the baseline, as `evaluate` prints them, with its warnings."""
    caption = "95 % interval: where scores on other rows like these lie, by a bootstrap. "
    caption += "Guessing: always the same prediction."
    tables = evaluation_tables(evaluation).items()
    drawn = [
        Table(title, tuple(columns), [*map(tuple, rows)], caption if "guessing" in columns else "")
        for title, (columns, rows) in tables
    ]
    return Section("Scores", "\n".join(warnings), tables=tuple(drawn))


@dataclass(frozen=True)
class DevRows:
    """Rows of a dev split with the predictions of a student and its teacher.

    Attributes:
        table: their ``source_row``, ``sentence1`` and ``sentence2``.
        teacher: the teacher's predictions, no rows without a teacher.
        student: the student's, calibrated.
    """

    table: pa.Table
    teacher: Predictions
    student: Predictions


def dev_sections(run: Path, logit_set: LogitSet, evaluation: dict[str, Any]) -> list[Section]:
    """Returns a section per dev split, or one that reports that there are no dev splits.

    Args:
        run: the folder of the run.
        logit_set: the set that it was trained on.
        evaluation: what `student.evaluate.evaluate` returned for the run.
    """
    if set(logit_set.splits) == {"train"}:
        return [Section("Dev splits", "The set has no dev splits.")]
    student = load_student(run).to(default_device())
    rows_of = DEV_ROWS.get(student.config.rows)
    if rows_of is None:
        return [Section("Dev splits", f"No pictures are drawn of {student.config.rows}.")]
    texts = predictions.text_headings(logit_set.record)
    return [
        _dev_section(split, rows_of(logit_set, split, student, rows), evaluation[split], texts, logit_set.root)
        for split, rows in dev_examples(run, student.config, logit_set).items()
    ]


def _rows_of_examples(logit_set: Any, split: str, student: TaskStudent, rows: Examples) -> DevRows:
    assert isinstance(student, Student), "its rows are examples"
    table = logit_set.read(split, (*KEYS, "sentence1", "sentence2"), ORIGINALS)
    # The rows are read twice, once for the student and once here, and another process could replace the set in between.
    if keys_sha256(table) != rows.keys_sha256:
        raise IntegrityError(f"{logit_set.root}: the rows of {split!r} changed while they were read. Try again.")
    student_NC = calibrated(student_logits(student, rows), student.config.calibration)
    answers = {"teacher": rows.teacher_NC, "student": student_NC}
    gold = (rows.label_N, rows.score_N)
    return DevRows(table, *(Predictions(who, student.config.target, NC, *gold) for who, NC in answers.items()))


def _rows_of_words(logit_set: Any, split: str, student: TaskStudent, rows: LabelledWords) -> DevRows:
    """Returns a row per word with a token, because words are scored by their tokens."""
    assert isinstance(student, TokenLabelStudent), "its rows are labelled words"
    logits_TC = calibrated(logits_of_tokens(student, rows.pieces.ids), student.config.calibration)
    token_W = rows.pieces.by_word(np.arange(len(logits_TC)), rows.num_words_N, -1).flat
    table = pa.concat_tables([part for shard in logit_set.shards(split) for part in logit_set.read_shard(shard)])
    is_read_W = token_W >= 0
    sentence_W = np.repeat(np.arange(len(rows)), rows.num_words_N)
    # Sentences without gold labels keep NO_LABEL and are left out of the scores.
    label_W = np.full(len(token_W), NO_LABEL)
    label_W[rows.has_gold_N[sentence_W]] = rows.gold.flat
    words = {
        "source_row": table.column("source_row").to_numpy()[sentence_W[is_read_W]],
        "sentence1": pc.list_flatten(table.column("words").combine_chunks()).filter(pa.array(is_read_W)),
        "sentence2": pa.nulls(int(is_read_W.sum()), pa.string()),
    }
    gold = (label_W[is_read_W], np.full(int(is_read_W.sum()), np.nan, dtype=np.float32))
    answers = {"teacher": rows.teacher_TC, "student": logits_TC}
    at_W = token_W[is_read_W]
    of = [Predictions(who, student.config.target, TC[at_W if len(TC) else []], *gold) for who, TC in answers.items()]
    return DevRows(pa.table(words), *of)


DEV_ROWS: dict[KindName, Callable[[Any, str, TaskStudent, Any], DevRows]] = {
    "examples": _rows_of_examples,
    "token_labels": _rows_of_words,
}


def _dev_section(split: str, rows: DevRows, parts: dict[str, Any], texts: dict[str, str], root: Path) -> Section:
    """Draws what `evaluate` returned for a split, and the predictions that it was computed from."""
    target, teacher, student = rows.student.target, rows.teacher, rows.student
    known = [of.with_gold for of in (teacher, student) if len(of)]
    by_label = {"student": parts["by_label"], "teacher": parts["teacher_by_label"]}
    drawn, tables = predictions.against_gold(known, parts["confusion"], by_label)
    if len(teacher):
        drawn += _against_teacher(teacher, student)
    if len(known) > 1 and len(student.with_gold) and target.has_classes:
        drawn.append(predictions.handed_on(*known))
    if len(student.with_gold) and not target.has_label_lists:
        tables.append(_worst_rows(rows, texts, partial(with_file_columns, root, split)))
    return Section(f"Split {split}", pictures=tuple(drawn), tables=tuple(tables))


def _against_teacher(teacher: Predictions, student: Predictions) -> list[Picture]:
    """Draws the student's predictions against the teacher's. Several labels per row have no picture."""
    target, title = student.target, "Student against teacher"
    if target.has_classes:
        counts = confusion_of_labels(target, student.logits_NC, teacher.logits_NC.argmax(axis=1))
        caption = "Predictions of the student for each prediction of the teacher: number of rows, and share."
        return [charts.matrix(title, counts, target.names, ("teacher", "student"), caption)]
    if target.has_label_lists:
        return []
    limits = predictions.limits_of(teacher.scores_N, student.scores_N)
    axes = ("score by the teacher", "score by the student")
    caption = "Darker cells contain more rows. On the dashed line, both predict the same."
    return [charts.density(title, teacher.scores_N, student.scores_N, limits, axes, caption)]


def _worst_rows(rows: DevRows, texts: dict[str, str], place: Callable[[Rows], Rows]) -> Table:
    """Returns the rows on which the student is wrong and the teacher, if there is one, is right or closer to gold."""
    teacher, student, has_teacher = rows.teacher, rows.student, len(rows.teacher) > 0
    columns = {"row": "source_row", "gold": "label", "student": "student", "confidence": "confidence"}
    if student.target.has_classes:
        student_N, best_N = student.logits_NC.argmax(axis=1), student.label_N
        if has_teacher:
            best_N = teacher.logits_NC.argmax(axis=1)
        is_known_N = (best_N == student.label_N) & (student.label_N != NO_LABEL)
        chosen_N = np.flatnonzero(is_known_N & (student_N != student.label_N))
        worst_N = softmax(student.logits_NC).max(axis=1)
        values = {"label": student.label_N, "student": student_N, "confidence": worst_N}
        which, order = "the student is wrong", "The most confident mistakes come first."
        if has_teacher:
            which = "only the teacher is right"
    else:
        worst_N = abs(student.scores_N - student.score_N)
        values = {"score": student.score_N, "student": student.scores_N}
        columns = {"row": "source_row", "gold": "score", "student": "student"}
        chosen_N = np.flatnonzero(np.isfinite(student.score_N))
        which, order = "the student is farthest from gold", "The largest differences come first."
        if has_teacher:
            worst_N = worst_N - abs(teacher.scores_N - student.score_N)
            values["teacher"], columns["teacher"] = teacher.scores_N, "teacher"
            which = "the student is farther from gold than the teacher"
    first = chosen_N[np.argsort(-worst_N[chosen_N], kind="stable")][:SHOWN_ROWS]
    shown = rows.table.take(first).to_pylist()
    found = [row | {name: of_N[k].item() for name, of_N in values.items()} for row, k in zip(shown, first, strict=True)]
    title = "The student fails, the teacher does not" if has_teacher else "The largest mistakes of the student"
    caption = f"Rows on which {which}. {order}"
    return predictions.row_table(title, place(found), columns | texts, student.target.names, caption)


def certificate_sections(run: Path) -> list[Section]:
    """Returns the section about a run's certificate, if it has one."""
    if not (run / CERTIFICATE_FILE).exists():
        return []
    title = "Answers or abstains"
    try:
        certificate = read_certificate(run)
    except DistillError as error:
        return [Section(title, str(error))]
    best = certificate.certified
    facts = {
        "at most differ from the teacher": f"{certificate.disagreement:.2%} of the answers",
        "with confidence": f"{certificate.confidence:.0%}",
        "answers where the margin is above": best.threshold if best else "no threshold could be proved",
        "answered": f"{certificate.coverage:.1%}",
        "held-out rows": certificate.num_rows,
        "chosen by": certificate.where,
        "of the set": certificate.logit_set,
        "hash of the rows": certificate.rows_sha256,
    }
    return [Section(title, facts=facts, pictures=(_risk(certificate),))]


def _risk(certificate: Certificate) -> Picture:
    trials = certificate.trials
    risk = [trial.disagreements / trial.answered if trial.answered else 0.0 for trial in trials]
    # Clips the bounds of the first trials, which are far higher.
    highest = max(*risk, 2 * certificate.disagreement)
    bounds = [min(trial.bound, highest) for trial in trials]
    best = certificate.certified.percent if certificate.certified else None
    limit = {f"target: {certificate.disagreement:g}": certificate.disagreement}
    caption = (
        "Share of answers that differ from the teacher's if the student only answers its most confident rows, "
        f"and the upper bound of this share with {certificate.confidence:.0%} confidence. The circle is the "
        "certified threshold."
    )
    percent, lines = [trial.percent for trial in trials], {"differ": risk, "upper bound": bounds}
    return charts.curves("Risk against coverage", percent, lines, "% answered", caption, best, limit)
