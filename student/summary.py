"""An evaluation, and the points of a sweep, as rows of a table."""

from collections.abc import Mapping
from typing import Any

from pipeline.console import show, size
from pipeline.training.run_record import RunRecord

SCORE_COLUMNS = ("split", "metric", "student", "95 % interval", "teacher", "guessing")
CALIBRATION_COLUMNS = ("split", "probabilities", "before calibration", "after", "95 % from", "to")


def score_columns(evaluation: dict[str, Any]) -> list[str]:
    """The columns of `score_rows`."""
    return [*SCORE_COLUMNS, *(["n-grams"] if _has_baseline(evaluation) else [])]


def score_rows(evaluation: dict[str, Any]) -> list[list[Any]]:
    """A row of `score_columns` for each split and metric, and one for their mean where there are several.

    Args:
        evaluation: what `student.evaluate.evaluate` gives, with the scores of a ``baseline`` or without.
    """
    rows: list[list[Any]] = []
    with_baseline = _has_baseline(evaluation)
    for split, parts in evaluation.items():
        for name, value in parts["gold"].items():
            interval = "{:.3f} to {:.3f}".format(*parts["interval"][name])
            others = [parts["teacher"].get(name), parts["majority"][name]]
            baseline = [parts["baseline"]["scores"][name]] if with_baseline else []
            rows.append([split, name, value, interval, *others, *baseline])
        # GLUE's number is the mean of a task's metrics. With a single metric it would repeat that row.
        if parts["glue"] is not None and parts["glue"] not in parts["gold"].values():
            rows.append([split, "mean", parts["glue"], *[None] * (3 + with_baseline)])
    return rows


def _has_baseline(evaluation: dict[str, Any]) -> bool:
    return any("baseline" in parts for parts in evaluation.values())


def calibration_rows(evaluation: dict[str, Any]) -> list[list[Any]]:
    """A row of `CALIBRATION_COLUMNS` for each split and measure of probabilities, none without a calibration."""
    rows = [
        [split, name.replace("_", " "), value.get("before"), value.get("after"), *value.get("after_interval", ())]
        for split, parts in evaluation.items()
        for name, value in parts.get("calibration", {}).items()
    ]
    # A student without calibration has nothing to compare, and its evaluation still holds the numbers.
    return [row for row in rows if row[3] is not None]


def size_line(record: RunRecord) -> str | None:
    """Returns the size of a student and its teacher in words. None if the run did not record it."""
    sizes = record.get("result", {}).get("size")
    if sizes is None:
        return None
    teacher = f". Teacher: {sizes['teacher_parameters']:,} parameters" if "teacher_parameters" in sizes else ""
    return f"student: {sizes['parameters']:,} parameters, {size(sizes['bytes'])} on disk{teacher}"


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
