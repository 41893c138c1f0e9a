"""An evaluation as rows of a table."""

from typing import Any

SCORE_COLUMNS = ("split", "metric", "student", "95 % interval", "teacher", "guessing")


def score_rows(evaluation: dict[str, Any]) -> list[list[Any]]:
    """A row of `SCORE_COLUMNS` for each split and metric, and one for their mean where there are several.

    Args:
        evaluation: what `student.evaluate.evaluate` gives.
    """
    rows: list[list[Any]] = []
    for split, parts in evaluation.items():
        for name, value in parts["gold"].items():
            interval = "{:.3f} to {:.3f}".format(*parts["interval"][name])
            rows.append([split, name, value, interval, parts["teacher"][name], parts["majority"][name]])
        if len(parts["gold"]) > 1 and parts["glue"] is not None:
            rows.append([split, "mean", parts["glue"], None, None, None])
    return rows
