"""The charts that sets and runs share: the predictions of a teacher or a student for a split."""

from collections.abc import Mapping
from math import log

import duckdb

from distill.apps.report import charts, queries
from distill.apps.report.page import Picture, Rows, Table, clipped, name_of
from distill.apps.svg import BLUE, RED
from pipeline.sets.record import SetRecord
from pipeline.tasks.target import Target

# Drawn from the bottom up: the few wrong answers are easiest to compare at the baseline.
KINDS = {False: "wrong answers", True: "right answers", None: "all rows"}
COLOURS = {"wrong answers": RED, "right answers": BLUE, "all rows": BLUE}
Connection = duckdb.DuckDBPyConnection
CLASSES = {"label", "predicted", "teacher", "student", "likely"}
TEXTS = {"sentence 1": "sentence1", "sentence 2": "sentence2"}
TAKEN = CLASSES | {"row", "gold", "margin", "confidence", "p(gold)", "p(likely)", "p(label)", *TEXTS}


def text_headings(record: SetRecord) -> dict[str, str]:
    """The headings of the columns of texts: as the task's files name them."""
    own = [names[0] for names in record.task.text_columns or ()] if record.task is not None else []
    # A file that names its columns as sets do has nothing to add, and other columns of a table have these names.
    headings = [
        usual if name == column or name in TAKEN else name
        for name, (usual, column) in zip(own, TEXTS.items(), strict=False)
    ]
    return dict(zip([*headings, *list(TEXTS)[len(headings) :]], TEXTS.values(), strict=True))


def against_gold(connection: Connection, table: str, target: Target, who: str) -> list[Picture]:
    """Charts that compare predicted labels or scores with gold."""
    if target.has_classes:
        return [reliability(connection, table, who), confusion(connection, table, target, who)]
    if target.has_label_lists:
        return [label_reliability(connection, table, who)]
    limits = queries.score_limits(connection, [table], target)
    return [scores(connection, table, target, who, limits), residuals(connection, table, target, who, limits)]


def reliability(connection: Connection, table: str, who: str) -> Picture:
    """Confidence against accuracy."""
    bins, error = queries.calibration(connection, table)
    caption = (
        f"Accuracy of the {who} by its confidence. Points on the dashed line are calibrated, points below it are "
        f"overconfident. The size of a point is its share of the rows. Expected calibration error: {error:.4f}."
    )
    return Picture(f"Reliability of the {who}", charts.reliability(bins), caption, bins)


def label_reliability(connection: Connection, table: str, who: str) -> Picture:
    """The predicted probability of labels of a multi-label task against their frequency."""
    bins, error = queries.label_calibration(connection, table)
    caption = (
        f"Share of correct labels by the probability that the {who} predicts, over every label of every row. Points on "
        f"the dashed line are calibrated. The size of a point is its share. Expected calibration error: {error:.4f}."
    )
    drawn = charts.reliability(bins, "probability", "share of labels that hold")
    return Picture(f"Reliability of the {who}", drawn, caption, bins)


def confusion(connection: Connection, table: str, target: Target, who: str) -> Picture:
    """Gold classes against predicted classes."""
    rows = queries.confusion(connection, table)
    caption = f"Predictions of the {who} for the rows of each gold class: number of rows, and share of the class."
    return matrix(f"Confusion of the {who}", rows, target, ("gold", who), caption)


def matrix(title: str, rows: Rows, target: Target, axes: tuple[str, str], caption: str) -> Picture:
    """Two answers, ``a`` down and ``b`` across, for rows of ``a``, ``b`` and ``n``."""
    counts = {(row["a"], row["b"]): row["n"] for row in rows}
    down, across = axes
    named = [{down: name_of(target.names, a), across: name_of(target.names, b), "n": n} for (a, b), n in counts.items()]
    return Picture(title, charts.matrix(target.names, counts, *axes), caption, named)


def scores(connection: Connection, table: str, target: Target, who: str, limits: charts.Limits) -> Picture:
    """Gold scores against predicted ones."""
    pairs = f"select score as a, {queries.score_sql(target)} as b from {table}"
    caption = "Darker cells contain more rows. On the dashed line, the predicted score equals gold."
    return density(connection, pairs, limits, f"Scores of the {who}", ("gold score", f"score by the {who}"), caption)


def density(
    connection: Connection, pairs: str, limits: charts.Limits, title: str, axes: tuple[str, str], caption: str
) -> Picture:
    """Where the pairs ``a``, ``b`` of a SELECT lie."""
    rows = queries.score_grid(connection, pairs, limits)
    counts = {(row["a"], row["b"]): row["n"] for row in rows}
    step = (limits[1] - limits[0]) / queries.CELLS
    figures = [
        {f"{axis} from": limits[0] + row[k] * step for axis, k in zip(axes, "ab", strict=True)} | {"n": row["n"]}
        for row in rows
    ]
    return Picture(title, charts.density(counts, queries.CELLS, limits, *axes), caption, figures)


def residuals(connection: Connection, table: str, target: Target, who: str, limits: charts.Limits) -> Picture:
    """How far scores lie from gold."""
    widest = limits[1] - limits[0]
    rows = queries.residuals(connection, table, target, widest)
    caption = f"How far the {who}'s scores lie above gold (right of 0) or below it (left)."
    return histogram("Errors", rows, (-widest, widest), "score less gold score", caption)


def certainty(connection: Connection, table: str, target: Target) -> list[Picture]:
    """The teacher's confidence by margin and entropy, or label by label, for right and wrong predictions."""
    if target.has_label_lists:
        caption = "Every label of every row. At 0 and 1 the teacher is certain, at 0.5 it is undecided."
        rows = queries.label_certainty(connection, table)
        return [histogram("Probabilities", rows, (0, 1), "probability of a label", caption, "labels")]
    undecided = log(target.num_logits)
    return [
        histogram(
            "Margin",
            queries.certainty(connection, table, "margin", 1.0),
            (0, 1),
            "probability of the best class less that of the second",
            "Larger margins mean a more confident teacher. At 0, two classes are equally probable.",
        ),
        histogram(
            "Entropy",
            queries.certainty(connection, table, "entropy", undecided),
            (0, undecided),
            "entropy (nats)",
            f"Smaller entropies mean a more confident teacher. At {undecided:.2f}, all classes are equally probable.",
        ),
    ]


def histogram(
    title: str, rows: Rows, limits: charts.Limits, xlabel: str, caption: str, ylabel: str = "rows"
) -> Picture:
    """Rows of ``bin``, ``n`` and maybe ``is_right``, over bins of one width."""
    low, high = limits
    edges = [low + k * (high - low) / queries.BINS for k in range(queries.BINS + 1)]
    counts: dict[str, list[int]] = {}
    for is_right, name in KINDS.items():
        answered = [row for row in rows if row.get("is_right") is is_right]
        if answered:
            counts[name] = [sum(row["n"] for row in answered if row["bin"] == k) for k in range(queries.BINS)]
    figures = [
        {"from": edges[k], "to": edges[k + 1]} | {name: n[k] for name, n in counts.items()} for k in range(queries.BINS)
    ]
    return Picture(title, charts.histogram(edges, counts, COLOURS, xlabel, ylabel), caption, figures)


def row_table(title: str, rows: Rows, columns: Mapping[str, str], names: tuple[str, ...], caption: str) -> Table:
    """A table of rows for people, with names of classes and shortened texts.

    Args:
        title: of the table.
        rows: the rows that SQL returned.
        columns: headings of the columns to show. Columns of classes are called ``label``, ``teacher`` and so on.
        names: of the classes.
        caption: how to read the table.
    """
    has_pairs = any(row.get("sentence2") is not None for row in rows)
    shown = {head: column for head, column in columns.items() if has_pairs or column != "sentence2"}

    def cell(column: str, value: int | float | str | None) -> int | float | str | None:
        if column in CLASSES and isinstance(value, int):
            return name_of(names, value)
        return clipped(value) if isinstance(value, str) else value

    cells = [tuple(cell(column, row[column]) for column in shown.values()) for row in rows]
    return Table(title, tuple(shown), cells, caption)


def label_scores(connection: Connection, table: str, target: Target, who: str) -> Table:
    """Precision, recall and F1 of every label that is gold or predicted."""
    rows = queries.label_scores(connection, table, target)
    columns = {
        "label": "label",
        "gold": "gold",
        "predicted": "num_predicted",
        "precision": "precision",
        "recall": "recall",
        "f1": "f1",
    }
    caption = "Number of rows with the label as gold and as prediction, precision and recall."
    return row_table(f"The {who} label by label", rows, columns, target.names, caption)


def confused(connection: Connection, table: str, target: Target, who: str) -> list[Table]:
    """The most frequent mistakes by name, if there are too many classes for the names in a chart."""
    # With few classes the confusion matrix shows all numbers, and a table would repeat them.
    if not target.has_classes or target.num_logits <= charts.MOST_WRITTEN_CLASSES:
        return []
    columns = {"gold": "label", who: "predicted", "rows": "n", "share of the class": "share"}
    rows = queries.confused(connection, table)
    return [row_table(f"Commonest mistakes of the {who}", rows, columns, target.names, "The most rows first.")]
