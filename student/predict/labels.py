"""A student's answers: labels by thresholds and costs, as columns.

The label with the lowest expected cost is the one with the largest probability times cost. For a multi-label student, a
label is predicted if cost * p / (1 - p) exceeds the odds of its threshold. Both cases add log(cost) to the logit.
Thresholds are stored as probabilities and used as logits: a label holds where its logit is above.

Shapes: N rows, C logits or labels.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import ConfigError, did_you_mean
from pipeline.tasks.target import Target, margins, predicted_scores, probabilities, softmax
from pipeline.tasks.temperature import Calibration, as_logits, intervals
from pipeline.training.run_record import stored_thresholds

if TYPE_CHECKING:
    import pyarrow as pa

# This value replaces the label of a row whose margin is too small.
ABSTAIN = "abstain"


def answer_columns(
    target: Target,
    logits_NC: Floats,
    threshold: float | None = None,
    bias_C: Floats | None = None,
    calibration: Calibration | None = None,
) -> "dict[str, pa.Array]":
    """A student's answers by column, N rows each.

    Args:
        target: what the logits mean.
        logits_NC: float32 logits before softmax, calibrated.
        threshold: the margin above which the student answers, or None if it always does.
        bias_C: added to the logits before labels are chosen. See `Predictor`.
        calibration: of scores, for their intervals.

    Returns: For classes ``label`` (string), ``probabilities`` (a struct of float32, by label) and ``margin`` (float32,
        the best probability less the second). For multi-label tasks ``label`` (a list of strings) and
        ``probabilities``. Otherwise ``score`` (float32) and, once calibrated, ``interval`` (a struct of float32,
        ``low`` and ``high``).
    """
    import pyarrow as pa

    if not target.has_labels:
        return _score_columns(predicted_scores(target, logits_NC), calibration)
    p_NC = probabilities(target, logits_NC)
    columns = {
        "label": chosen(target, logits_NC, threshold, bias_C),
        "probabilities": pa.StructArray.from_arrays(list(map(pa.array, p_NC.T)), names=target.names),
    }
    return columns | ({"margin": pa.array(margins(p_NC))} if target.has_classes else {})


def _score_columns(score_N: Floats, calibration: Calibration | None) -> "dict[str, pa.Array]":
    import pyarrow as pa

    columns = {"score": pa.array(score_N)}
    if (ends := intervals(score_N, calibration)) is None:
        return columns
    return columns | {"interval": pa.StructArray.from_arrays(list(map(pa.array, ends)), names=["low", "high"])}


def chosen(
    target: Target, logits_NC: Floats, threshold: float | None = None, bias_C: Floats | None = None
) -> "pa.Array":
    """Returns the label of each row, or for a multi-label task the list of its labels. See `answer_columns`."""
    import pyarrow as pa

    if target.has_classes:
        return labels(target, _moved(logits_NC, bias_C), threshold)
    holds_NC = holding(logits_NC, bias_C)
    row_S, label_S = np.nonzero(holds_NC)
    offsets_N = np.searchsorted(row_S, np.arange(len(holds_NC) + 1))
    return pa.ListArray.from_arrays(pa.array(offsets_N, pa.int32()), pa.array(target.names).take(pa.array(label_S)))


def chosen_names(
    target: Target, logits_NC: Floats, threshold: float | None = None, bias_C: Floats | None = None
) -> list[str] | list[list[str]]:
    """The same as a list, without Arrow, whose first array imports pandas: longer than a student takes to answer."""
    if target.has_classes:
        names = [*target.names, ABSTAIN]
        return [names[k] for k in _likeliest(target, _moved(logits_NC, bias_C), threshold).tolist()]
    return [
        [name for name, holds in zip(target.names, row, strict=True) if holds] for row in holding(logits_NC, bias_C)
    ]


def labels(target: Target, p_NC: Floats, threshold: float | None = None) -> "pa.Array":
    """The likeliest label of each row, by its name, or `ABSTAIN` where its margin is not above the threshold."""
    import pyarrow as pa

    # Taking from one array of names avoids a Python loop over the rows.
    return pa.array([*target.names, ABSTAIN]).take(pa.array(_likeliest(target, p_NC, threshold)))


def holding(logits_NC: Floats, bias_C: Floats | None) -> Bools:
    """Which labels hold [N, C], where any number of them may."""
    return np.asarray(logits_NC + (0 if bias_C is None else bias_C) > 0)


def _moved(logits_NC: Floats, bias_C: Floats | None) -> Floats:
    # Costs move the choice of a label. The reported probabilities stay those of the student.
    return softmax(logits_NC if bias_C is None else logits_NC + bias_C)


def _likeliest(target: Target, p_NC: Floats, threshold: float | None) -> Ints:
    best_N: Ints = p_NC.argmax(axis=1)
    if threshold is None:
        return best_N
    return np.where(margins(p_NC) > threshold, best_N, len(target.names))


def label_bias(run: Path, target: Target, costs: Mapping[str, float]) -> Floats | None:
    """Returns the bias that is added to the logits [C], or None without costs and thresholds.

    Args:
        run: whose thresholds are taken, of a multi-label student.
        target: names the labels.
        costs: of missing a label, 1 for those that are not named.

    Raises:
        ConfigError: for an unknown label, a cost that is not above 0, or a student without labels.
        IntegrityError: if the run's thresholds are damaged.
    """
    return bias_of(stored_thresholds(run) if target.has_label_lists else {}, target, costs)


def bias_of(thresholds: Mapping[str, float], target: Target, costs: Mapping[str, float]) -> Floats | None:
    """The same of thresholds by label."""
    if costs and not target.has_labels:
        raise ConfigError("--cost: this student gives scores and chooses no label")
    for name, cost in costs.items():
        if name not in target.names:
            raise ConfigError(f"--cost: unknown label {name!r}. {did_you_mean(name, target.names)}")
        if not (0 < cost < math.inf):
            raise ConfigError(f"--cost {name}={cost:g}: a cost is a number above 0")
    if not costs and not target.has_label_lists:
        return None
    log_C = np.log([costs.get(name, 1.0) for name in target.names]).astype(np.float32)
    # A cost multiplies the odds, so its logarithm is added to the logit, and the threshold's logit is subtracted.
    return log_C - as_logits(thresholds, target) if target.has_label_lists else log_C


def read_costs(texts: Sequence[str]) -> dict[str, float]:
    """Costs by label, of texts like ``fraud=10``.

    Raises:
        ConfigError: for what is no such text, or a label that is there twice.
    """
    costs = {}
    for text in texts:
        name, sign, number = text.rpartition("=")
        try:
            cost = float(number)
        except ValueError:
            sign = ""
        if not sign or name in costs:
            raise ConfigError(f"--cost {text}: not LABEL=NUMBER, such as fraud=10, once for each label")
        costs[name] = cost
    return costs
