"""What a student and its teacher say of the same dev rows, side by side."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from distill.apps.bench.timing import processor
from distill.apps.report import charts, pictures, queries
from distill.apps.report.page import Picture, Section, Table
from distill.apps.report.pictures import TEXTS, Connection
from pipeline.arrays import Floats
from pipeline.errors import DistillError, IntegrityError
from pipeline.sets.reader import KEYS, ORIGINALS, ExampleSet, keys_sha256
from pipeline.sql.gate import open_files
from pipeline.tasks.target import NO_LABEL, Target, softmax
from student.answers.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from student.answers.labels import margins
from student.data import Examples, as_read, load_examples
from student.evaluate import dev_examples
from student.kinds.examples import student_logits
from student.model.model import Student, default_device

COLUMNS = (*KEYS, "label", "score", "logits", "sentence1", "sentence2")
SHARES = range(0, 101)  # percent
MOST_ROWS = 2_000
TRIES = 3
FIDELITY = {
    "agreement": "answers as its teacher",
    "kl": "KL divergence from its teacher (nats)",
    "pearson": "Pearson with its teacher",
    "rmse": "root mean squared distance from its teacher",
}


def dev_sections(run: Path, logit_set: ExampleSet) -> list[Section]:
    """A section per dev split, or one that says that there is none."""
    if set(logit_set.splits) == {"train"}:
        return [Section("Dev splits", "The set has none.")]
    student = Student.load(run).to(default_device())
    return [
        _section(split, _teacher_table(logit_set, split, rows), student, rows)
        for split, rows in dev_examples(student.config, logit_set).items()
    ]


def _teacher_table(logit_set: ExampleSet, split: str, rows: Examples) -> pa.Table:
    """The same rows with their texts."""
    table = logit_set.read(split, COLUMNS, ORIGINALS)
    if keys_sha256(table) != rows.keys_sha256:
        raise IntegrityError(f"{logit_set.root}: the rows of {split!r} changed while they were read; try again")
    return table


def _section(split: str, teacher: pa.Table, student: Student, rows: Examples) -> Section:
    logits_NC = student_logits(student, rows)
    column = pa.FixedSizeListArray.from_arrays(pa.array(logits_NC.reshape(-1)), logits_NC.shape[1])
    target = student.config.target
    with open_files({}) as connection:
        connection.register("teacher", teacher)
        connection.register("student", teacher.set_column(teacher.schema.get_field_index("logits"), "logits", column))
        has_gold = queries.num_gold(connection, "teacher", target) > 0
        drawn = {"classes": _classes, "labels": _labels}.get(target.kind, _scores)(connection, target, has_gold)
        if has_gold and target.kind == "classes":
            drawn.append(cascade(logits_NC, rows))
        tables = _tables(connection, target) if has_gold else []
    return Section(f"Split {split}", pictures=tuple(drawn), tables=tuple(tables))


def _tables(connection: Connection, target: Target) -> list[Table]:
    tables = pictures.confused(connection, "student", target, "student")
    if target.has_labels:
        tables += [pictures.label_scores(connection, who, target, who) for who in ("student", "teacher")]
    return tables if target.kind == "labels" else [*tables, _only_teacher_right(connection, target)]


def _classes(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    caption = "What the student answers where the teacher gives an answer: their number, and their share of the answer."
    answers = queries.answers(connection, "teacher", "student")
    both = pictures.matrix("Student against teacher", answers, target, ("teacher", "student"), caption)
    if not has_gold:
        return [both]
    reliability = [pictures.reliability(connection, who, who) for who in ("teacher", "student")]
    return [*reliability, pictures.confusion(connection, "student", target, "student"), both]


def _labels(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    whose = ("teacher", "student") if has_gold else ()
    return [pictures.label_reliability(connection, who, who) for who in whose]


def _scores(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    limits = queries.score_limits(connection, ["teacher", "student"], target)
    pairs = queries.both_scores_sql(target)
    axes = ("score by the teacher", "score by the student")
    caption = "A cell's colour is the stronger the more rows lie in it. On the dashed line the two say the same."
    both = pictures.density(connection, pairs, limits, "Student against teacher", axes, caption)
    if not has_gold:
        return [both]
    scores = [pictures.scores(connection, who, target, who, limits) for who in ("teacher", "student")]
    return [*scores, both, pictures.residuals(connection, "student", target, "student", limits)]


def _only_teacher_right(connection: Connection, target: Target) -> Table:
    rows = queries.only_teacher_right(connection, target)
    if target.kind == "classes":
        columns = {"row": "source_row", "gold": "label", "student": "student", "confidence": "confidence", **TEXTS}
        caption = "Rows that the teacher has right and the student wrong, those first of which the student is surest."
    else:
        columns = {"row": "source_row", "gold": "score", "teacher": "teacher", "student": "student", **TEXTS}
        caption = "Rows on which the student is farther from gold than the teacher, the farthest first."
    return pictures.row_table("The student fails, the teacher does not", rows, columns, target.names, caption)


def certificate_sections(run: Path) -> list[Section]:
    """What was proved of a run: a section, or none."""
    if not (run / CERTIFICATE_FILE).exists():
        return []
    title = "Answers or abstains"
    try:
        certificate = read_certificate(run)
    except DistillError as error:
        return [Section(title, str(error))]
    return [Section(title, facts=_facts(certificate), pictures=(_risk(certificate),))]


def _facts(certificate: Certificate) -> dict[str, object]:
    best = certificate.certified
    return {
        "at most differ from the teacher": f"{certificate.disagreement:.2%} of the answers",
        "with confidence": f"{certificate.confidence:.0%}",
        "answers where the margin is above": best.threshold if best else "no threshold could be shown to hold",
        "answered": f"{certificate.coverage:.1%}",
        "held-out rows": certificate.num_rows,
        "chosen by": certificate.where,
        "of the set": certificate.logit_set,
        "hash of the rows": certificate.rows_sha256,
    }


def _risk(certificate: Certificate) -> Picture:
    trials = certificate.trials
    risk = [trial.disagreements / trial.answered if trial.answered else 0.0 for trial in trials]
    highest = max(*risk, 2 * certificate.disagreement)  # the bound of the first few is far above all others
    lines = {"differ": risk, "upper bound": [min(trial.bound, highest) for trial in trials]}
    best = certificate.certified.percent if certificate.certified else None
    limit = {f"asked for: {certificate.disagreement:g}": certificate.disagreement}
    caption = (
        "Which share of the answers differs from the teacher's, if only so many of the surest are given, and the bound "
        f"of that with {certificate.confidence:.0%} confidence. The circle is the certified threshold."
    )
    rows = [trial.model_dump() for trial in trials]
    percent = [trial.percent for trial in trials]
    return Picture("Risk against coverage", charts.curves(percent, lines, "% answered", best, limit), caption, rows)


def cascade(logits_NC: Floats, rows: Examples) -> Picture:
    """Accuracy if the student answers where it is surest and the teacher the rest, by how much that is."""
    known_N = rows.label_N != NO_LABEL
    order_N = np.argsort(-margins(softmax(logits_NC[known_N])), kind="stable")
    right_2N = [
        (who_NC[known_N].argmax(axis=1) == rows.label_N[known_N])[order_N] for who_NC in (logits_NC, rows.teacher_NC)
    ]
    student_S, teacher_S = (np.concatenate([[0], np.cumsum(right_N)]) for right_N in right_2N)
    num_rows = len(order_N)
    accuracy = []
    for share in SHARES:  # asked of the teacher
        own = round(num_rows * (100 - share) / 100)
        accuracy.append(float(student_S[own] + teacher_S[num_rows] - teacher_S[own]) / num_rows)
    levels = {"teacher alone": accuracy[-1], "student alone": accuracy[0]}
    caption = (
        "Accuracy if the teacher is asked about the rows of which the student is least sure. What it costs is that "
        "share of the teacher's time; the student's hardly counts."
    )
    drawn = charts.curves(list(SHARES), {"accuracy": accuracy}, "% asked of the teacher", levels=levels)
    figures = [{"percent": share, "accuracy": value} for share, value in zip(SHARES, accuracy, strict=True)]
    return Picture("Student and teacher together", drawn, caption, figures)


class SpeedTest:
    """The first rows of a set's first dev split, for students to read."""

    def __init__(self, logit_set: ExampleSet) -> None:
        self.split = min(logit_set.splits, key=lambda split: split == "train")
        self._examples = load_examples(logit_set, self.split, f"source_row < {MOST_ROWS} and variant = 0")
        self.num_rows = len(self._examples)

    def measure(self, run: Path) -> float:
        """Rows a second in large batches, in the best of a few tries after a warm-up."""
        student = Student.load(run).to(default_device())
        examples = as_read(self._examples, student.config)
        student_logits(student, examples)
        seconds = []
        for _ in range(TRIES):
            start = time.perf_counter()
            student_logits(student, examples)
            seconds.append(time.perf_counter() - start)
        return self.num_rows / min(seconds)


def machine() -> str:
    """The device that students run on here, in words."""
    if default_device().type == "cuda":
        return f"on a {torch.cuda.get_device_name()}"
    return f"on {processor()}, {torch.get_num_threads()} thread{'s' if torch.get_num_threads() > 1 else ''}"


def scores_section(evaluation: dict[str, Any]) -> Section:
    """Scores against gold and against the teacher, as `evaluate` gives them."""
    rows, close = [], []
    for split, parts in evaluation.items():
        for name, value in parts["gold"].items():
            low, high = parts.get("interval", {}).get(name, (None, None))
            others = (parts["teacher"].get(name), parts.get("majority", {}).get(name))
            rows.append((split, name.replace("_", " "), value, low, high, *others))
        close += [(split, FIDELITY.get(name, name), value) for name, value in parts["fidelity"].items()]
    columns = ("split", "metric", "student", "95 % from", "to", "teacher", "guessing")
    caption = "95 % from, to: where the score may lie, for dev rows chosen by chance. Guessing: always the same answer."
    tables = (
        Table("Against gold", columns, rows, caption),
        Table("Against its teacher", ("split", "", "student"), close),
    )
    return Section("Scores", tables=tuple(table for table in tables if table.rows))
