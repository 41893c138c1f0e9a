"""An evaluation, and the points of a sweep, as rows of a table."""

from collections.abc import Mapping, Sequence
from math import hypot, sqrt
from typing import Any

from pipeline.console import show, size
from pipeline.record_file import Record
from pipeline.tasks.temperature import COVERAGE

IN_WORDS = {"coverage": f"gold within the {COVERAGE:.0%} interval"}
MOST_NAMED = 3  # points of a sweep in a sentence
Point = Mapping[str, Any]


def evaluation_tables(evaluation: dict[str, Any]) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Returns the tables of an evaluation, columns and rows by title. Tables without rows are left out.

    Args:
        evaluation: what `student.evaluate.evaluate` gives, with the scores of a ``baseline`` or without.
    """
    baseline = ["baseline"] if _has_baseline(evaluation) else []
    tables = {
        "Against gold": (
            ["split", "metric", "student", "95 % interval", "teacher", "guessing", *baseline],
            score_rows(evaluation),
        ),
        "Other scores": (
            ["split", "also", "student"],
            [[split, *row] for split, parts in evaluation.items() for row in _other_scores(parts)],
        ),
        # A student without calibration has nothing to compare, and its evaluation still holds the numbers.
        "Probabilities": (
            ["split", "probabilities", "before calibration", "after", "95 % from", "to"],
            [
                [split, IN_WORDS.get(name, name.replace("_", " ")), value.get("before"), value["after"], *ends]
                for split, parts in evaluation.items()
                for name, value in parts.get("calibration", {}).items()
                if "after" in value
                for ends in [value.get("after_interval", (None, None))]
            ],
        ),
    }
    return {title: table for title, table in tables.items() if table[1]}


def score_rows(evaluation: dict[str, Any]) -> list[list[Any]]:
    """A row for each split and metric, and one for their mean where there are several."""
    rows: list[list[Any]] = []
    with_baseline = _has_baseline(evaluation)
    for split, parts in evaluation.items():
        for name, value in parts["gold"].items():
            ends = parts["interval"].get(name)
            interval = "{:.3f} to {:.3f}".format(*ends) if ends else None
            others = [parts["teacher"].get(name), parts["majority"][name]]
            baseline = [parts.get("baseline", {}).get("scores", {}).get(name)] if with_baseline else []
            rows.append([split, name, value, interval, *others, *baseline])
        # GLUE's number is the mean of a task's metrics. With a single metric it would repeat that row.
        if parts["glue"] is not None and parts["glue"] not in parts["gold"].values():
            rows.append([split, "mean", parts["glue"], *[None] * (3 + with_baseline)])
    return rows


def _other_scores(parts: dict[str, Any]) -> list[list[Any]]:
    # A metric of the task is in the table of scores.
    labels = {name: value for name, value in parts.get("labels", {}).items() if name not in parts["gold"]}
    rows = [[name.replace("_", " "), value] for name, value in labels.items()]
    rows += [[f"{name.replace('_', ' ')} as it decides", value] for name, value in parts.get("decided", {}).items()]
    rows += [[name, value] for name, value in parts["bins"].items()]
    return rows + [[f"{name} with the teacher", value] for name, value in parts["fidelity"].items()]


def _has_baseline(evaluation: dict[str, Any]) -> bool:
    return any("baseline" in parts for parts in evaluation.values())


def mistakes(counts: Mapping[str, Mapping[str, int]]) -> list[tuple[str, str, int, float]]:
    """Returns the confusions of two labels, the most frequent first: gold, predicted, rows, share of the gold label."""
    found = [(a, b, n, n / sum(row.values())) for a, row in counts.items() for b, n in row.items() if a != b]
    return sorted(found, key=lambda one: -one[2])


def size_line(record: Record) -> str | None:
    """Returns the size of a student and its teacher in words. None if the run did not record it."""
    sizes = record.get("result", {}).get("size")
    if sizes is None:
        return None
    teacher = f". Teacher: {sizes['teacher_parameters']:,} parameters" if "teacher_parameters" in sizes else ""
    return f"student: {sizes['parameters']:,} parameters, {size(sizes['bytes'])} of weights on disk{teacher}"


def rank(scores: Mapping[str, Any]) -> tuple[int, float]:
    """Returns a sort key that is greater for better scores of a point. Points with all seeds come first."""
    # A point with a missing seed could lead by one lucky run, so complete points rank first.
    return len(scores["scores"]), scores["mean"]


def leading(points: Sequence[Point]) -> list[Point]:
    """Returns the best point of a sweep, and those that may be as good.

    Their mean over the seeds equals that of the best, or is below by at most the standard error of the difference.
    """
    best = max(points, key=rank)
    complete = [point for point in points if len(point["scores"]) == len(best["scores"])]
    return [point for point in complete if best["mean"] - point["mean"] <= hypot(_error(best), _error(point))]


def _error(point: Point) -> float:
    """Returns the standard error of a mean over seeds. With a single seed it is unknown, and only equal means tie."""
    return (point["deviation"] or 0.0) / sqrt(len(point["scores"]))


def tie(points: Sequence[Point]) -> str | None:
    """Returns the leading points of a sweep in words, None if one is ahead of the others."""
    found = leading(points)
    if len(found) < 2:
        return None
    more = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    *names, last = [*map(point_name, found[:MOST_NAMED]), *more]
    return f"{', '.join(names)} and {last}, whose means are equal or differ by at most the standard error"


def point_name(point: Point) -> str:
    """Returns the values of a point in words."""
    return ", ".join(f"{name} {value}" for name, value in point["values"].items())


def point_table(result: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Returns the columns and rows of a sweep's table: values, scores, and for several tasks the score of each.

    The mean of all tasks is left out if the points have different tasks.

    Args:
        result: the result in the sweep's record.
    """
    tasks: dict[str, Any] = result.get("best_by_task", {})
    means = ["mean", "±"] if result["best"] else []
    of_tasks = [f"{name} {one['metric'].split()[-1]}" for name, one in tasks.items()]
    columns = [*result["points"][0]["values"], *means, *of_tasks, "seeds"]
    rows = [
        [
            *point["values"].values(),
            *((point["mean"], point["deviation"]) if means else ()),
            *(_with_deviation(point["by_task"].get(name)) for name in tasks),
            len(point["scores"]),
        ]
        for point in result["points"]
    ]
    return columns, rows


def _with_deviation(scores: Mapping[str, Any] | None) -> str | None:
    if scores is None:
        return None
    return show(scores["mean"]) + ("" if scores["deviation"] is None else f" ± {show(scores['deviation'])}")
