"""What a student's certainty is worth: its certificate, and the two of them together, student and teacher."""

from pathlib import Path

import numpy as np

from distill.apps.report import charts
from distill.apps.report.page import Picture, Section
from pipeline.arrays import Floats
from pipeline.errors import DistillError
from pipeline.tasks.target import NO_LABEL, softmax
from student.answers.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from student.answers.labels import margins
from student.data import Examples

SHARES = range(0, 101)  # percent


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
