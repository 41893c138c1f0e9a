"""Compares a student's predictions with its teacher's on the same dev rows."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from distill.apps.bench.timing import processor
from distill.apps.report import charts, queries, split_charts
from distill.apps.report.page import Picture, Section, Table
from distill.apps.report.split_charts import Connection
from pipeline.arrays import Floats, Ints
from pipeline.errors import DistillError, IntegrityError
from pipeline.sets.kinds.examples import KEYS, ORIGINALS, keys_sha256
from pipeline.sets.kinds.token_labels import LabelledWords
from pipeline.sets.open import LogitSet
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import KindName
from pipeline.sets.signals.rows import logits_of
from pipeline.sql.read_only_query import open_files
from pipeline.tasks.target import NO_LABEL, Target, gold_arrays, margins, softmax
from pipeline.tasks.temperature import calibrated
from student.data import Examples
from student.evaluate import dev_examples
from student.lessons import KINDS
from student.lessons.examples import student_logits
from student.lessons.token_labels import logits_of_tokens
from student.model.student import Student, TaskStudent, TokenLabelStudent, default_device, load_student
from student.predict.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from student.summary import CALIBRATION_COLUMNS, calibration_rows

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


def dev_sections(run: Path, logit_set: LogitSet) -> list[Section]:
    """A section per dev split, or one that reports that there are no dev splits."""
    if set(logit_set.splits) == {"train"}:
        return [Section("Dev splits", "The set has no dev splits.")]
    student = load_student(run).to(default_device())
    rows_of = DEV_ROWS.get(student.config.rows)
    if rows_of is None:
        return [Section("Dev splits", f"No pictures are drawn of {student.config.rows}.")]
    return [
        _section(split, rows_of(logit_set, split, student, rows), student.config.target, logit_set.record)
        for split, rows in dev_examples(student.config, logit_set).items()
    ]


@dataclass(frozen=True)
class DevRows:
    """Rows with predictions of both a student and its teacher.

    Attributes:
        table: their keys, texts, gold and the teacher's logits.
        student_NC: float32 logits of the student, calibrated.
    """

    table: pa.Table
    student_NC: Floats


def _rows_of_examples(logit_set: Any, split: str, student: TaskStudent, rows: Examples) -> DevRows:
    assert isinstance(student, Student), "its rows are examples"
    table = logit_set.read(split, COLUMNS, ORIGINALS)
    # The rows are read twice, once for the student and once here, and another process could replace the set in between.
    if keys_sha256(table) != rows.keys_sha256:
        raise IntegrityError(f"{logit_set.root}: the rows of {split!r} changed while they were read. Try again.")
    return DevRows(table, calibrated(student_logits(student, rows), student.config.calibration))


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
    columns = {
        "split": pa.array([split] * int(is_read_W.sum())),
        "source_row": pa.array(table.column("source_row").to_numpy()[sentence_W[is_read_W]]),
        "variant": pa.array(np.zeros(int(is_read_W.sum()), np.int32)),
        "label": pa.array(label_W[is_read_W].astype(np.int32), mask=label_W[is_read_W] == NO_LABEL),
        "score": pa.nulls(int(is_read_W.sum()), pa.float32()),
        "logits": _lists(rows.teacher_TC[token_W[is_read_W]]),
        "sentence1": pc.list_flatten(table.column("words").combine_chunks()).filter(pa.array(is_read_W)),
        "sentence2": pa.nulls(int(is_read_W.sum()), pa.string()),
    }
    return DevRows(pa.table(columns), logits_TC[token_W[is_read_W]])


DEV_ROWS: dict[KindName, Callable[[Any, str, TaskStudent, Any], DevRows]] = {
    "examples": _rows_of_examples,
    "token_labels": _rows_of_words,
}


def _lists(logits_NC: Floats) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(logits_NC.reshape(-1)), logits_NC.shape[1])


def _section(split: str, rows: DevRows, target: Target, record: SetRecord) -> Section:
    teacher, place = rows.table, rows.table.schema.get_field_index("logits")
    with open_files({}) as connection:
        connection.register("teacher", teacher)
        connection.register("student", teacher.set_column(place, "logits", _lists(rows.student_NC)))
        has_gold = queries.num_gold(connection, "teacher", target) > 0
        drawn = {"classes": _classes, "labels": _labels}.get(target.kind, _scores)(connection, target, has_gold)
        if has_gold and target.has_classes:
            label_N, _ = gold_arrays(target, teacher)
            drawn.append(cascade(rows.student_NC, logits_of(teacher, target.num_logits), label_N))
        tables = _tables(connection, target, record) if has_gold else []
    return Section(f"Split {split}", pictures=tuple(drawn), tables=tuple(tables))


def _tables(connection: Connection, target: Target, record: SetRecord) -> list[Table]:
    tables = split_charts.confused(connection, "student", target, "student")
    if target.has_labels:
        tables += [split_charts.label_scores(connection, who, target, who) for who in ("student", "teacher")]
    return tables if target.has_label_lists else [*tables, _only_teacher_right(connection, target, record)]


def _classes(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    caption = "Predictions of the student for each prediction of the teacher: number of rows, and share."
    answers = queries.answers(connection, "teacher", "student")
    both = split_charts.matrix("Student against teacher", answers, target, ("teacher", "student"), caption)
    if not has_gold:
        return [both]
    reliability = [split_charts.reliability(connection, who, who) for who in ("teacher", "student")]
    return [*reliability, split_charts.confusion(connection, "student", target, "student"), both]


def _labels(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    whose = ("teacher", "student") if has_gold else ()
    return [split_charts.label_reliability(connection, who, who) for who in whose]


def _scores(connection: Connection, target: Target, has_gold: bool) -> list[Picture]:
    limits = queries.score_limits(connection, ["teacher", "student"], target)
    pairs = queries.both_scores_sql(target)
    axes = ("score by the teacher", "score by the student")
    caption = "Darker cells contain more rows. On the dashed line, both predict the same."
    both = split_charts.density(connection, pairs, limits, "Student against teacher", axes, caption)
    if not has_gold:
        return [both]
    scores = [split_charts.scores(connection, who, target, who, limits) for who in ("teacher", "student")]
    return [*scores, both, split_charts.residuals(connection, "student", target, "student", limits)]


def _only_teacher_right(connection: Connection, target: Target, record: SetRecord) -> Table:
    texts = split_charts.text_headings(record)
    rows = queries.only_teacher_right(connection, target)
    if target.has_classes:
        columns = {"row": "source_row", "gold": "label", "student": "student", "confidence": "confidence", **texts}
        caption = "Rows on which only the teacher is right. The most confident mistakes of the student come first."
    else:
        columns = {"row": "source_row", "gold": "score", "teacher": "teacher", "student": "student", **texts}
        caption = "Rows on which the student is farther from gold than the teacher. The largest differences come first."
    return split_charts.row_table("The student fails, the teacher does not", rows, columns, target.names, caption)


def certificate_sections(run: Path) -> list[Section]:
    """Returns the section about a run's certificate, if it has one."""
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
        "answers where the margin is above": best.threshold if best else "no threshold could be proved",
        "answered": f"{certificate.coverage:.1%}",
        "held-out rows": certificate.num_rows,
        "chosen by": certificate.where,
        "of the set": certificate.logit_set,
        "hash of the rows": certificate.rows_sha256,
    }


def _risk(certificate: Certificate) -> Picture:
    trials = certificate.trials
    risk = [trial.disagreements / trial.answered if trial.answered else 0.0 for trial in trials]
    # Clips the bounds of the first trials, which are far higher.
    highest = max(*risk, 2 * certificate.disagreement)
    lines = {"differ": risk, "upper bound": [min(trial.bound, highest) for trial in trials]}
    best = certificate.certified.percent if certificate.certified else None
    limit = {f"target: {certificate.disagreement:g}": certificate.disagreement}
    caption = (
        "Share of answers that differ from the teacher's if the student only answers its most confident rows, "
        f"and the upper bound of this share with {certificate.confidence:.0%} confidence. The circle is the "
        "certified threshold."
    )
    rows = [trial.model_dump() for trial in trials]
    percent = [trial.percent for trial in trials]
    return Picture("Risk against coverage", charts.curves(percent, lines, "% answered", best, limit), caption, rows)


def cascade(logits_NC: Floats, teacher_NC: Floats, label_N: Ints) -> Picture:
    """Accuracy if the student answers its most confident rows and the teacher the others, by the teacher's share."""
    known_N = label_N != NO_LABEL
    order_N = np.argsort(-margins(softmax(logits_NC[known_N])), kind="stable")
    right_2N = [(who_NC[known_N].argmax(axis=1) == label_N[known_N])[order_N] for who_NC in (logits_NC, teacher_NC)]
    student_S, teacher_S = (np.concatenate([[0], np.cumsum(right_N)]) for right_N in right_2N)
    num_rows = len(order_N)
    accuracy = []
    for share in SHARES:  # percentage of rows that go to the teacher
        own = round(num_rows * (100 - share) / 100)
        accuracy.append(float(student_S[own] + teacher_S[num_rows] - teacher_S[own]) / num_rows)
    levels = {"teacher alone": accuracy[-1], "student alone": accuracy[0]}
    caption = (
        "Accuracy if the teacher predicts the rows with the student's lowest confidence. The cost is about that share "
        "of the teacher's time."
    )
    drawn = charts.curves(list(SHARES), {"accuracy": accuracy}, "% predicted by the teacher", levels=levels)
    figures = [{"percent": share, "accuracy": value} for share, value in zip(SHARES, accuracy, strict=True)]
    return Picture("Student and teacher together", drawn, caption, figures)


class SpeedTest:
    """The first rows of a set's first dev split, for students to read."""

    def __init__(self, logit_set: LogitSet) -> None:
        # Chooses the first dev split. False sorts before True, so train is chosen only if there is no other split.
        self.split = min(logit_set.splits, key=lambda split: split == "train")
        self._kind = KINDS[logit_set.record.kind]
        self._rows = self._kind.read_first(logit_set, self.split, MOST_ROWS)
        self.num_rows = len(self._rows)

    def measure(self, run: Path) -> float:
        """Measures rows per second in large batches. Returns the best of a few tries after a warm-up."""
        student = load_student(run).to(default_device())
        rows = self._kind.as_read(self._rows, student.config)
        self._kind.student_logits(student, rows)
        seconds = []
        for _ in range(TRIES):
            start = time.perf_counter()
            self._kind.student_logits(student, rows)
            seconds.append(time.perf_counter() - start)
        # The fastest try is the one that other programs disturbed least.
        return self.num_rows / min(seconds)


def machine() -> str:
    """Returns a description of the device on which students run."""
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
    caption = "95 % from, to: bootstrap interval over dev rows. Guessing: always the same prediction."
    tables = (
        Table("Against gold", columns, rows, caption),
        Table("Against its teacher", ("split", "", "student"), close),
        Table(
            "Probabilities",
            CALIBRATION_COLUMNS,
            [*map(tuple, calibration_rows(evaluation))],
            "95 % from, to: bootstrap interval after calibration.",
        ),
    )
    return Section("Scores", tables=tuple(table for table in tables if table.rows))
