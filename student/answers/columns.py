"""What a student says of rows as columns of a table. Shapes: N rows, C logits."""

import numpy as np
import pyarrow as pa

from pipeline.arrays import Floats
from pipeline.tasks.target import Target, predicted_scores, probabilities, softmax

ABSTAIN = "abstain"  # in place of a label


def answer_columns(
    target: Target, logits_NC: Floats, threshold: float | None = None, bias_C: Floats | None = None
) -> dict[str, pa.Array]:
    """A student's answers by column, N rows each.

    Args:
        target: what the logits mean.
        logits_NC: float32 logits before softmax.
        threshold: the margin above which the student answers; None if it always does.
        bias_C: added to the logits before labels are chosen; see `Predictor`.

    Returns:
        Of classes ``label`` (string), ``probabilities`` (a struct of float32, by label) and ``margin`` (float32, the
        best probability less the second); of labels apart ``label`` (a list of strings) and ``probabilities``;
        otherwise ``score`` (float32).
    """
    if not target.has_labels:
        return {"score": pa.array(predicted_scores(target, logits_NC))}
    p_NC = probabilities(target, logits_NC)
    columns = {
        "label": chosen(target, logits_NC, threshold, bias_C),
        "probabilities": pa.StructArray.from_arrays(list(map(pa.array, p_NC.T)), names=target.names),
    }
    return columns | ({"margin": pa.array(margins(p_NC))} if target.kind == "classes" else {})


def chosen(target: Target, logits_NC: Floats, threshold: float | None = None, bias_C: Floats | None = None) -> pa.Array:
    """The label of each row, or of labels apart the list of those that hold; see `answer_columns`."""
    if target.kind == "classes":
        return labels(target, softmax(logits_NC if bias_C is None else logits_NC + bias_C), threshold)
    said_NC = logits_NC + (0 if bias_C is None else bias_C) > 0
    row_S, label_S = np.nonzero(said_NC)
    offsets_N = np.searchsorted(row_S, np.arange(len(said_NC) + 1))
    return pa.ListArray.from_arrays(pa.array(offsets_N, pa.int32()), pa.array(target.names).take(pa.array(label_S)))


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
