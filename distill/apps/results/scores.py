"""How good a system is on rows: against gold, and against the teacher. Shapes: N rows, C logits."""

from typing import Any

from distill.apps.results.rows import Rows
from pipeline.arrays import Floats
from pipeline.tasks.intervals import bootstrap_intervals
from pipeline.tasks.metrics import fidelity, score_logits
from pipeline.tasks.target import Target, predicted_scores
from pipeline.tasks.task import Metric

SCORE = Target(kind="score", names=("score",))


def scores(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, teacher: Target, rows: Rows
) -> dict[str, Any]:
    """Scores a system's logits.

    Args:
        metrics: names of the task's metrics.
        target: what the system's logits mean.
        logits_NC: what it says of the rows.
        teacher: what the teacher's logits mean; scores may be bins there.
        rows: with gold and the teacher's logits.

    Returns:
        ``scores`` and 95 % ``intervals`` by metric, and ``fidelity``: the share of rows with the teacher's label, or
        the Pearson correlation with its scores.
    """
    gold = (rows.label_N, rows.score_N)
    if target.has_labels:
        alike = fidelity(target, logits_NC, rows.teacher_NC)["agreement"]
    else:
        said = (predicted_scores(t, part)[:, None] for t, part in ((target, logits_NC), (teacher, rows.teacher_NC)))
        alike = fidelity(SCORE, *said)["pearson"]
    return {
        "scores": score_logits(metrics, target, logits_NC, *gold),
        "intervals": bootstrap_intervals(metrics, target, logits_NC, *gold),
        "fidelity": alike,
    }
