"""GLUE's metrics, computed by scikit-learn and scipy. Shapes: N rows, C logits."""

import warnings

import numpy as np
from scipy import stats
from sklearn import metrics as sk

from pipeline.arrays import Floats, Ints
from pipeline.tasks.target import NO_LABEL, Target, gold_classes, predicted_scores, softmax
from pipeline.tasks.task import Metric


def score_logits(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats
) -> dict[str, float]:
    """Scores logits against gold, over the rows that have gold.

    Args:
        metrics: names of the task's metrics.
        target: what the logits mean.
        logits_NC: float32, before softmax, in the task's label order.
        label_N: int64 gold classes, ``NO_LABEL`` where unknown.
        score_N: float32 raw gold scores, NaN where unknown.

    Returns:
        One value per metric, between -1 and 1; empty if no row has gold. A correlation with a constant is 0.
    """
    if target.kind == "classes":
        known = label_N != NO_LABEL
        return _classification(metrics, logits_NC[known].argmax(axis=1), label_N[known])
    known = np.isfinite(score_N)
    return _regression(metrics, predicted_scores(target, logits_NC)[known], score_N[known])


def fidelity(target: Target, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
    """How closely a student's logits follow its teacher's.

    Returns:
        For classes and bins: ``agreement`` (share of rows with the same arg max) and ``kl`` (mean KL divergence of
        the student from the teacher, nats). For a score: ``pearson`` with the teacher and ``rmse``.
    """
    if not len(teacher_NC):
        return {}
    if target.kind == "score":
        error = student_NC[:, 0] - teacher_NC[:, 0]
        pearson = _correlation("pearson", student_NC[:, 0], teacher_NC[:, 0])
        return {"pearson": pearson, "rmse": float(np.sqrt((error**2).mean()))}
    agreement = float((student_NC.argmax(axis=1) == teacher_NC.argmax(axis=1)).mean())
    return {"agreement": agreement, "kl": mean_kl(teacher_NC, student_NC)}


def mean_kl(p_NC: Floats, q_NC: Floats) -> float:
    """Mean over rows of KL(softmax(p) || softmax(q)), nats."""
    log_p, log_q = _log_softmax(p_NC), _log_softmax(q_NC)
    return float((softmax(p_NC) * (log_p - log_q)).sum(axis=1).mean())


def glue_score(scores: dict[str, float]) -> float | None:
    """GLUE's one number for a task: the mean of its metrics (accuracy and F1; Pearson and Spearman); None if none."""
    return float(np.mean(list(scores.values()))) if scores else None


def majority_scores(metrics: tuple[Metric, ...], target: Target, label_N: Ints, score_N: Floats) -> dict[str, float]:
    """The metrics of always answering the commonest gold class; 0 for correlations with a score."""
    if target.kind != "classes":
        return dict.fromkeys(metrics, 0.0) if np.isfinite(score_N).any() else {}
    known = label_N != NO_LABEL
    if not known.any():
        return {}
    commonest = int(np.bincount(label_N[known]).argmax())
    always_NC = np.zeros((len(label_N), target.num_logits), dtype=np.float32)
    always_NC[:, commonest] = 1
    return score_logits(metrics, target, always_NC, label_N, score_N)


def bin_scores(metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, score_N: Floats) -> dict[str, float]:
    """Other readings of binned scores than the expected score against raw gold, by the metric's name and the reading.

    ``argmax`` takes the likeliest bin's score; ``argmax_binned_gold`` also cuts the gold into bins, as the CMOW paper's
    code does. Empty for other targets.
    """
    if target.bins is None:
        return {}
    known = np.isfinite(score_N)
    middle = np.asarray(target.bins.values, dtype=np.float32)
    predicted_N = middle[logits_NC.argmax(axis=1)][known]
    binned_N = middle[gold_classes(target, np.full(len(score_N), NO_LABEL), score_N)[known]]
    readings = {"argmax": score_N[known], "argmax_binned_gold": binned_N}
    return {
        f"{name}_{reading}": value
        for reading, gold_N in readings.items()
        for name, value in _regression(metrics, predicted_N, gold_N).items()
    }


def _log_softmax(logits_NC: Floats) -> np.ndarray:
    shifted = logits_NC.astype(np.float64) - logits_NC.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _classification(metrics: tuple[Metric, ...], predicted_N: Ints, gold_N: Ints) -> dict[str, float]:
    if not len(gold_N):
        return {}
    if len(np.union1d(gold_N, predicted_N)) == 1:  # a single class on both sides: all right, no correlation
        return {
            name: 0.0 if name == "matthews_correlation" else float(gold_N[0] if name == "f1" else 1) for name in metrics
        }
    functions = {"accuracy": sk.accuracy_score, "f1": _f1, "matthews_correlation": sk.matthews_corrcoef}
    return {name: float(functions[name](gold_N, predicted_N)) for name in metrics}


def _f1(gold_N: Ints, predicted_N: Ints) -> float:
    return float(sk.f1_score(gold_N, predicted_N, zero_division=0.0))


def _regression(metrics: tuple[Metric, ...], predicted_N: Floats, gold_N: Floats) -> dict[str, float]:
    if not len(gold_N):
        return {}
    return {name: _correlation(name, predicted_N, gold_N) for name in metrics}


def _correlation(name: str, a_N: Floats, b_N: Floats) -> float:
    function = {"pearson": stats.pearsonr, "spearmanr": stats.spearmanr}[name]
    with warnings.catch_warnings():  # scipy warns of a constant input; its NaN is turned into 0 below
        warnings.simplefilter("ignore")
        value = function(a_N, b_N).statistic if len(a_N) > 1 else 0.0
    return float(value) if np.isfinite(value) else 0.0
