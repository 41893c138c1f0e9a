"""What a student says of rows as columns of a table. Shapes: N rows, C logits."""

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.tasks.target import Target, predicted_scores, softmax

ABSTAIN = "abstain"  # in place of a label


def answer_columns(target: Target, logits_NC: Floats, threshold: float | None = None) -> dict[str, pa.Array]:
    """A student's answers by column, N rows each.

    Args:
        target: what the logits mean.
        logits_NC: float32 logits before softmax.
        threshold: the margin above which the student answers; None if it always does.

    Returns:
        Of classes ``label`` (string), ``probabilities`` (a struct of float32, by label) and ``margin`` (float32, the
        best probability less the second); otherwise ``score`` (float32).
    """
    if target.kind != "classes":
        return {"score": pa.array(predicted_scores(target, logits_NC))}
    p_NC = softmax(logits_NC)
    return {
        "label": labels(target, p_NC, threshold),
        "probabilities": pa.StructArray.from_arrays(list(map(pa.array, p_NC.T)), names=target.names),
        "margin": pa.array(margins(p_NC)),
    }


def labels(target: Target, p_NC: Floats, threshold: float | None = None) -> pa.Array:
    """The likeliest label of each row, by its name, or `ABSTAIN` where its margin is not above the threshold."""
    best_N = p_NC.argmax(axis=1)
    if threshold is not None:
        best_N = np.where(margins(p_NC) > threshold, best_N, len(target.names))
    return pa.array([*target.names, ABSTAIN]).take(pa.array(best_N))


def margins(p_NC: Floats) -> Floats:
    """By how much the best probability of each row [N] leads the second."""
    second_N, best_N = np.partition(p_NC, -2, axis=1)[:, -2:].T
    return np.asarray(best_N - second_N)
