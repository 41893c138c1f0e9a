"""Pictures and tables of predictions for the rows of a split, a teacher's or a student's.

Their numbers are those of `distill evaluate`: they come from the same functions, or from what it returned.

Shapes: N rows, C logits, classes or labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from distill.apps.report import charts
from distill.apps.report.charts import Confusion
from distill.apps.report.page import Picture, Rows, Table, clipped, name_of
from distill.apps.svg import BLUE, RED
from pipeline.arrays import Bools, Floats, Ints
from pipeline.sets.file_columns import PREFIX
from pipeline.sets.record import SetRecord
from pipeline.tasks.calibration_error import calibration_bins, calibration_error, confidences
from pipeline.tasks.target import Target, has_gold, margins, predicted_scores, probabilities, softmax
from student.summary import mistakes

BINS = 20  # of histograms
SHOWN_ROWS = 8
# Drawn from the bottom up: the few wrong answers are easiest to compare at the baseline.
COLOURS = {"wrong answers": RED, "right answers": BLUE, "all rows": BLUE}
CLASSES = {"label", "teacher", "student", "likely"}  # columns of rows that contain numbers of classes
TEXTS = {"sentence 1": "sentence1", "sentence 2": "sentence2"}
TAKEN = CLASSES | {"row", "gold", "predicted", "margin", "confidence", "p(gold)", "p(likely)", "p(label)", *TEXTS}
LABEL_COLUMNS = ("gold", "predicted", "precision", "recall", "f1")


@dataclass(frozen=True)
class Predictions:
    """The logits of a teacher or a student for the rows of a split, and the gold of these rows.

    Attributes:
        who: the teacher or the student.
        target: the meaning of the logits.
        logits_NC: float32.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where unknown. See `gold_arrays`.
        score_N: float32 gold scores, NaN where unknown.
    """

    who: str
    target: Target
    logits_NC: Floats
    label_N: Ints
    score_N: Floats

    @property
    def with_gold(self) -> "Predictions":
        """Those of the rows with gold."""
        known_N = has_gold(self.target, self.label_N, self.score_N)
        gold = (self.label_N[known_N], self.score_N[known_N])
        return Predictions(self.who, self.target, self.logits_NC[known_N], *gold)

    @property
    def scores_N(self) -> Floats:
        """The predicted score of each row."""
        return predicted_scores(self.target, self.logits_NC)

    def __len__(self) -> int:
        return len(self.logits_NC)


def against_gold(
    predictions: Sequence[Predictions], counts: Confusion, by_label: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> tuple[list[Picture], list[Table]]:
    """Draws predictions for rows with gold.

    Args:
        predictions: of the teacher, or of the teacher and the student. Confusion and errors are those of the last.
        counts: the ``confusion`` of an evaluation.
        by_label: the scores of labels of an evaluation, by who predicts.
    """
    last = predictions[-1]
    if not len(last):
        return [], []
    if last.target.has_labels:
        drawn = list(map(reliability, predictions))
    else:
        limits = limits_of(*(part for of in predictions for part in (of.scores_N, of.score_N)))
        drawn = [*(scores(of, limits) for of in predictions), residuals(last, limits)]
    tables = [label_table(values, who) for who, values in by_label.items() if values]
    if not counts:
        return drawn, tables
    caption = f"Predictions of the {last.who} for the rows of each gold class: number of rows, and share of the class."
    title, axes = f"Confusion of the {last.who}", ("gold", last.who)
    drawn.append(charts.matrix(title, counts, last.target.names, axes, caption))
    return drawn, [*commonest_mistakes(counts, last.target, last.who), *tables]


def reliability(of: Predictions) -> Picture:
    """Confidence against accuracy, label by label for a multi-label task."""
    p_NC = probabilities(of.target, of.logits_NC).astype(np.float64)
    sure = confidences(of.target, p_NC, of.label_N)
    bins, error = calibration_bins(*sure), calibration_error(*sure)
    if of.target.has_label_lists:
        axes = ("probability", "share of labels that hold")
        caption = (
            f"Share of correct labels by the probability that the {of.who} predicts, over every label of every row. "
            "Points on the dashed line are calibrated. The size of a point is its share."
        )
    else:
        axes = ("confidence", "share of right answers")
        caption = (
            f"Accuracy of the {of.who} by its confidence. Points on the dashed line are calibrated, points below it "
            "are overconfident. The size of a point is its share of the rows."
        )
    caption += f" Expected calibration error: {error:.4f}."
    return charts.reliability(f"Reliability of the {of.who}", bins, axes, caption)


def commonest_mistakes(counts: Confusion, target: Target, who: str) -> list[Table]:
    """The most frequent mistakes by name, if there are too many classes for the names in a chart."""
    # With few classes the confusion matrix shows all numbers, and a table would repeat them.
    if not target.has_classes or target.num_logits <= charts.MOST_WRITTEN_CLASSES:
        return []
    columns = ("gold", who, "rows", "share of the class")
    cells = [(clipped(a), clipped(b), n, share) for a, b, n, share in mistakes(counts)[:SHOWN_ROWS]]
    return [Table(f"Commonest mistakes of the {who}", columns, cells, "The most rows first.")]


def label_table(by_label: Mapping[str, Mapping[str, float]], who: str) -> Table:
    """Precision, recall and F1 of every label that is gold or predicted, the most frequent first."""
    ordered = sorted(by_label.items(), key=lambda one: -one[1]["gold"])
    rows = [(clipped(name), *(values[column] for column in LABEL_COLUMNS)) for name, values in ordered]
    caption = "Number of rows with the label as gold and as prediction, precision and recall."
    return Table(f"The {who} label by label", ("label", *LABEL_COLUMNS), rows, caption)


def limits_of(*scores: Floats) -> charts.Limits:
    """The lowest and the highest of some scores, NaN left out."""
    values = np.concatenate(scores)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def scores(of: Predictions, limits: charts.Limits) -> Picture:
    """Gold scores against predicted ones."""
    caption = "Darker cells contain more rows. On the dashed line, the predicted score equals gold."
    axes = ("gold score", f"score by the {of.who}")
    return charts.density(f"Scores of the {of.who}", of.score_N, of.scores_N, limits, axes, caption)


def residuals(of: Predictions, limits: charts.Limits) -> Picture:
    """How far scores lie from gold."""
    widest = limits[1] - limits[0]
    caption = f"How far the {of.who}'s scores lie above gold (right of 0) or below it (left)."
    return histogram("Errors", of.scores_N - of.score_N, None, (-widest, widest), "score less gold score", caption)


def certainty(of: Predictions) -> list[Picture]:
    """The teacher's confidence by margin and entropy, or label by label, for right and wrong predictions."""
    p_NC, known_N = probabilities(of.target, of.logits_NC), has_gold(of.target, of.label_N, of.score_N)
    if of.target.has_label_lists:
        right_N = np.where(known_N[:, None], (p_NC > 0.5) == (of.label_N == 1), -1).ravel()
        caption = "Every label of every row. At 0 and 1 the teacher is certain, at 0.5 it is undecided."
        return [histogram("Probabilities", p_NC.ravel(), right_N, (0, 1), "probability of a label", caption, "labels")]
    is_right_N = np.where(known_N, p_NC.argmax(axis=1) == of.label_N, -1) if of.target.has_classes else None
    entropy_N = -(p_NC * np.log(np.maximum(p_NC, np.finfo(np.float32).tiny))).sum(axis=1)
    undecided = log(of.target.num_logits)
    return [
        histogram(
            "Margin",
            margins(p_NC),
            is_right_N,
            (0, 1),
            "probability of the best class less that of the second",
            "Larger margins mean a more confident teacher. At 0, two classes are equally probable.",
        ),
        histogram(
            "Entropy",
            entropy_N,
            is_right_N,
            (0, undecided),
            "entropy (nats)",
            f"Smaller entropies mean a more confident teacher. At {undecided:.2f}, all classes are equally probable.",
        ),
    ]


def histogram(
    title: str,
    values_N: Floats,
    right_N: Ints | None,
    limits: charts.Limits,
    xlabel: str,
    caption: str,
    ylabel: str = "rows",
) -> Picture:
    """Draws how often values occur, apart by ``right_N``: 1 for a right answer, 0 for a wrong one, -1 if unknown."""
    places_N = charts.bins_of(values_N, limits, BINS)
    right_N = np.full(len(values_N), -1) if right_N is None else right_N
    parts: dict[str, Bools] = dict(zip(COLOURS, (right_N == 0, right_N == 1, right_N == -1), strict=True))
    counts = {
        name: np.bincount(places_N[one_N], minlength=BINS).tolist() for name, one_N in parts.items() if one_N.any()
    }
    return charts.histogram(title, counts, COLOURS, limits, (xlabel, ylabel), caption)


def handed_on(teacher: Predictions, student: Predictions) -> Picture:
    """Accuracy if the student answers its most confident rows and the teacher the others, by the teacher's share."""
    order_N = np.argsort(-margins(softmax(student.logits_NC)), kind="stable")
    right = [(of.logits_NC.argmax(axis=1) == of.label_N)[order_N] for of in (student, teacher)]
    student_S, teacher_S = (np.concatenate([[0], np.cumsum(right_N)]) for right_N in right)
    num_rows, percent = len(order_N), range(101)  # of the rows go to the teacher
    own = [round(num_rows * (100 - share) / 100) for share in percent]
    accuracy = ((student_S[own] + teacher_S[num_rows] - teacher_S[own]) / num_rows).tolist()
    levels = {"teacher alone": accuracy[-1], "student alone": accuracy[0]}
    caption = (
        "Accuracy if the teacher predicts the rows with the student's lowest confidence. The cost is about that share "
        "of the teacher's time."
    )
    title, axis = "Student and teacher together", "% predicted by the teacher"
    return charts.curves(title, percent, {"accuracy": accuracy}, axis, caption, levels=levels)


def text_headings(record: SetRecord) -> dict[str, str]:
    """The headings of the columns of texts: as the task's files name them."""
    own = [names[0] for names in record.task.text_columns or ()] if record.task is not None else []
    # A file that names its columns as sets do has nothing to add, and other columns of a table have these names.
    headings = [
        usual if name == column or name in TAKEN else name
        for name, (usual, column) in zip(own, TEXTS.items(), strict=False)
    ]
    return dict(zip([*headings, *list(TEXTS)[len(headings) :]], TEXTS.values(), strict=True))


def row_table(title: str, rows: Rows, columns: Mapping[str, str], names: tuple[str, ...], caption: str) -> Table:
    """A table of rows for people, with names of classes and shortened texts.

    Args:
        title: of the table.
        rows: the rows, perhaps `with_file_columns`.
        columns: headings of the columns to show. Columns of classes are called ``label``, ``teacher`` and so on.
        names: of the classes.
        caption: how to read the table.
    """
    has_pairs = any(row.get("sentence2") is not None for row in rows)
    kept = {name: name for row in rows[:1] for name in row if name.startswith(PREFIX)}
    shown = {head: column for head, column in {**kept, **columns}.items() if has_pairs or column != "sentence2"}

    def cell(column: str, value: Any) -> Any:
        if column in CLASSES and isinstance(value, int):
            return name_of(names, value)
        return clipped(value) if isinstance(value, str) else value

    cells = [tuple(cell(column, row.get(column)) for column in shown.values()) for row in rows]
    return Table(title, tuple(shown), cells, caption)
