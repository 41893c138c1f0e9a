"""Metrics of a set of rows, or of many resampled sets at once, and the 95 % intervals of their values.

F1 is computed from counts: how often each label is predicted, is gold, and is both.

Shapes: N rows, C logits, classes or labels, R sets of N rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pipeline.arrays import Bools, Floats, Floats64, Ints
from pipeline.tasks.intervals import RESAMPLES, SEED, score_interval
from pipeline.tasks.target import NO_LABEL, Target, TargetKind, gold_classes, has_gold, predicted_scores, softmax
from pipeline.tasks.task import Metric

CHUNK_VALUES = 2**24  # bounds the memory for resampled scores


def tallies(predicted_NC: Bools, gold_NC: Ints) -> Floats64:
    """Returns three tables of 0 and 1 [3, N, C]: right, predicted, gold. F1 is computed from their sums over rows."""
    return np.stack([predicted_NC * gold_NC, predicted_NC, gold_NC]).astype(np.float64)


def micro_f1(counts_3RC: Floats64) -> Floats64:
    """F1 over all labels together [R], or 0 if no label is predicted or gold."""
    right_R, predicted_R, gold_R = counts_3RC.sum(axis=-1)
    # 2 TP / (2 TP + FP + FN): predicted and gold counts together contain TP twice.
    return ratio(2 * right_R, predicted_R + gold_R)


def macro_f1(counts_3RC: Floats64) -> Floats64:
    """The mean F1 of the labels that are predicted or gold in some row [R], or 0 without such labels."""
    _, predicted_RC, gold_RC = counts_3RC
    return ratio(label_f1(counts_3RC).sum(axis=-1), (predicted_RC + gold_RC > 0).sum(axis=-1).astype(np.float64))


def label_f1(counts_3RC: Floats64) -> Floats64:
    """F1 of each label [R, C], or 0 if it is neither predicted nor gold."""
    right_RC, predicted_RC, gold_RC = counts_3RC
    return ratio(2 * right_RC, predicted_RC + gold_RC)


def scores_by_name(names: Sequence[str], counts_3C: Floats64) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 (0 if undefined) and counts of the names that are gold or predicted."""
    right_C, predicted_C, gold_C = counts_3C
    columns = {
        "precision": ratio(right_C, predicted_C),
        "recall": ratio(right_C, gold_C),
        "f1": label_f1(counts_3C),
        "gold": gold_C.astype(int),
        "predicted": predicted_C.astype(int),
    }
    return {
        name: {column: values_C[place].item() for column, values_C in columns.items()}
        for place, name in enumerate(names)
        if gold_C[place] or predicted_C[place]
    }


OF_LABELS: dict[str, Callable[[Floats64], Floats64]] = {"micro_f1": micro_f1, "macro_f1": macro_f1}  # `LabelMetric`


def ratio(top_R: Floats64, bottom_R: Floats64) -> Floats64:
    """Returns the quotients, or 0 for a denominator of 0."""
    return np.divide(top_R, bottom_R, out=np.zeros_like(top_R), where=bottom_R > 0)


def accuracy(counts_RCC: Floats64) -> Floats64:
    """Share of rows on the diagonal [R]."""
    return np.asarray(counts_RCC.trace(axis1=1, axis2=2) / counts_RCC.sum(axis=(1, 2)))


def f1(counts_RCC: Floats64) -> Floats64:
    """F1 of class 1 [R], or 0 if class 1 is neither gold nor predicted."""
    return ratio(2 * counts_RCC[:, 1, 1], counts_RCC[:, 1, :].sum(axis=1) + counts_RCC[:, :, 1].sum(axis=1))


def macro_f1_of_classes(counts_RCC: Floats64) -> Floats64:
    """The mean F1 of the classes that are in gold or predicted [R]."""
    right_RC = counts_RCC.diagonal(axis1=1, axis2=2)
    return macro_f1(np.stack([right_RC, counts_RCC.sum(axis=1), counts_RCC.sum(axis=2)]))


def matthews_correlation(counts_RCC: Floats64) -> Floats64:
    """Matthews' correlation of any number of classes [R] (Gorodkin 2004), or 0 if one side has a single class."""
    total_R, right_R = counts_RCC.sum(axis=(1, 2)), counts_RCC.trace(axis1=1, axis2=2)
    gold_RC, predicted_RC = counts_RCC.sum(axis=2), counts_RCC.sum(axis=1)
    covariance_R = right_R * total_R - (gold_RC * predicted_RC).sum(axis=1)
    # Counts are float64 here: as int64 the product of four counts overflows at some 50,000 rows.
    spread_R = (total_R**2 - (gold_RC**2).sum(axis=1)) * (total_R**2 - (predicted_RC**2).sum(axis=1))
    return ratio(covariance_R, np.sqrt(spread_R))


def pearson(pairs_2RN: Floats64) -> Floats64:
    """Pearson's correlation of predicted and gold scores [R], or 0 if one side is constant."""
    a_RN, b_RN = pairs_2RN - pairs_2RN.mean(axis=-1, keepdims=True)
    correlation_R = ratio((a_RN * b_RN).sum(axis=1), np.sqrt((a_RN**2).sum(axis=1) * (b_RN**2).sum(axis=1)))
    # Rounding can give 1.0000000000000002.
    return np.clip(correlation_R, -1, 1)


def spearmanr(pairs_2RN: Floats64) -> Floats64:
    """Spearman's rank correlation of predicted and gold scores [R]. Equal scores share their mean rank."""
    # Imported here: this library takes more than a second, and every command imports this module.
    from scipy.stats import rankdata

    return pearson(rankdata(pairs_2RN, axis=-1))


OF_COUNTS: dict[str, Callable[[Floats64], Floats64]] = {  # `ClassMetric`, for confusion matrices [R, gold, predicted]
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1_of_classes,
    "matthews_correlation": matthews_correlation,
}
OF_SCORES: dict[str, Callable[[Floats64], Floats64]] = {  # `ScoreMetric`, for scores [predicted or gold, R, N]
    "pearson": pearson,
    "spearmanr": spearmanr,
}


def confusion(gold_N: Ints, predicted_N: Ints, num_classes: int) -> Ints:
    """Returns the number of rows by gold and predicted class [C, C]."""
    # Each pair of classes as one number makes the confusion matrix a single histogram.
    counts = np.bincount(gold_N * num_classes + predicted_N, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def score_logits(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats
) -> dict[str, float]:
    """Scores logits against gold, over the rows that have gold.

    Args:
        metrics: names of the task's metrics.
        target: what the logits mean.
        logits_NC: float32, before softmax, in the task's label order.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where unknown. See `gold_arrays`.
        score_N: float32 raw gold scores, NaN where unknown.

    Returns: One value per metric, between -1 and 1. Empty if no row has gold. A correlation with a constant is 0. For
        several labels per row, a label counts as predicted if its logit is above 0.
    """
    known = has_gold(target, label_N, score_N)
    if not known.any():
        return {}
    measures = MEASURES[target.kind]
    whole = measures.whole(measures.statistics(target, logits_NC[known], label_N[known], score_N[known]))
    return {name: float(measures.functions[name](whole)[0]) for name in metrics}


def fidelity(target: Target, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
    """Measures how closely a student's logits follow its teacher's.

    Returns: For classes and bins: ``agreement`` (share of rows with the same arg max) and ``kl`` (mean KL divergence of
        the student from the teacher, nats). For several labels per row: ``agreement`` (share of rows with all labels
        the same) and ``kl``, mean over labels. For a score: ``pearson`` with the teacher and ``rmse``.
    """
    if not len(teacher_NC):
        return {}
    return MEASURES[target.kind].fidelity(student_NC, teacher_NC)


def mean_kl(p_NC: Floats, q_NC: Floats) -> float:
    """Mean over rows of KL(softmax(p) || softmax(q)), nats."""
    log_p, log_q = _log_softmax(p_NC), _log_softmax(q_NC)
    return float((softmax(p_NC) * (log_p - log_q)).sum(axis=1).mean())


def glue_score(scores: dict[str, float]) -> float | None:
    """Returns GLUE's single number for a task: the mean of its metrics, such as accuracy and F1.

    None without metrics, or with one that no task of GLUE has.
    """
    return float(np.mean(list(scores.values()))) if scores and not scores.keys() & {"macro_f1", "micro_f1"} else None


def majority_scores(metrics: tuple[Metric, ...], target: Target, label_N: Ints, score_N: Floats) -> dict[str, float]:
    """Returns the metrics of always predicting the most frequent gold label, or 0 for correlations with a score."""
    known = has_gold(target, label_N, score_N)
    if not known.any():
        return {}
    if not target.has_labels:
        return dict.fromkeys(metrics, 0.0)
    any_logits_NC = np.zeros((len(label_N), target.num_logits), dtype=np.float32)
    commonest = int(label_tallies(target, any_logits_NC, label_N)[2].argmax())  # by the counts of gold alone
    # Below 0 means "not predicted" for multi-label targets. For classes, any constant would do.
    always_NC = np.full((len(label_N), target.num_logits), -1, dtype=np.float32)
    always_NC[:, commonest] = 1
    return score_logits(metrics, target, always_NC, label_N, score_N)


def class_summary(target: Target, logits_NC: Floats, label_N: Ints) -> dict[str, float]:
    """Returns additional numbers for three labels or more: the mean F1 over labels, and how many are ever predicted.

    ``macro_f1`` is over the labels that are gold or predicted. Empty for other targets, and without gold.
    """
    if not target.has_labels or target.num_logits < 3:
        return {}
    counts_3C = label_tallies(target, logits_NC, label_N)
    if not counts_3C[2].any():
        return {}
    return {
        "macro_f1": float(macro_f1(counts_3C[:, None])[0]),
        "labels_in_gold": int((counts_3C[2] > 0).sum()),
        "labels_predicted": int((counts_3C[1] > 0).sum()),
    }


def label_tallies(target: Target, logits_NC: Floats, label_N: Ints) -> Floats64:
    """Returns how often each label is correctly predicted, predicted, and gold [3, C], over the rows with gold."""
    known = has_gold(target, label_N, np.empty(0, dtype=np.float32))
    return MEASURES[target.kind].label_tallies(logits_NC[known], label_N[known])


def scores_by_label(target: Target, logits_NC: Floats, label_N: Ints) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and counts of each label that is gold or predicted. See `scores_by_name`.

    Empty for targets without labels.
    """
    if not target.has_labels:
        return {}
    return scores_by_name(target.names, label_tallies(target, logits_NC, label_N))


def confusion_by_name(names: Sequence[str], counts_CC: Ints) -> dict[str, dict[str, int]]:
    """Returns how many rows of each gold label have each prediction, without zeros. See `confusion`."""
    return {
        name: {names[k]: int(count_C[k]) for k in np.flatnonzero(count_C).tolist()}
        for name, count_C in zip(names, counts_CC, strict=True)
        if count_C.any()
    }


def confusion_of_labels(target: Target, logits_NC: Floats, label_N: Ints) -> dict[str, dict[str, int]]:
    """How many rows of each gold label have each prediction. Empty for targets without a single label for each row."""
    if not target.has_classes:
        return {}
    known = label_N != NO_LABEL
    return confusion_by_name(
        target.names, confusion(label_N[known], logits_NC[known].argmax(axis=1), target.num_logits)
    )


def bin_scores(metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, score_N: Floats) -> dict[str, float]:
    """Returns other scores for bins than the expected score against raw gold, by the metric's name and the variant.

    ``argmax`` uses the score of the most likely bin. ``argmax_binned_gold`` also cuts the gold into bins, as the CMOW
    paper's code does. Empty for other targets.
    """
    if target.bins is None:
        return {}
    known = np.isfinite(score_N)
    if not known.any():
        return {}
    middle = np.asarray(target.bins.values, dtype=np.float32)
    predicted_N = middle[logits_NC.argmax(axis=1)][known]
    binned_N = middle[gold_classes(target, np.full(len(score_N), NO_LABEL), score_N)[known]]
    readings = {"argmax": score_N[known], "argmax_binned_gold": binned_N}
    return {
        f"{name}_{reading}": float(value_1[0])
        for reading, gold_N in readings.items()
        for name, value_1 in correlations(metrics, predicted_N, gold_N).items()
    }


def _yes_and_no(logits_NC: Floats) -> Floats:
    """Returns each label as two classes [N * C, 2], whose softmax is the label's sigmoid."""
    return np.stack([logits_NC, np.zeros_like(logits_NC)], axis=-1).reshape(-1, 2)


def _log_softmax(logits_NC: Floats) -> np.ndarray:
    from scipy.special import log_softmax

    return np.asarray(log_softmax(logits_NC.astype(np.float64), axis=1))


def correlations(metrics: Sequence[Metric], predicted_N: Floats, gold_N: Floats) -> dict[Metric, Floats64]:
    """Returns each metric of scores, [1]."""
    pairs_21N = np.stack([predicted_N, gold_N]).astype(np.float64)[:, None]
    return {name: OF_SCORES[name](pairs_21N) for name in metrics}


def bootstrap_intervals(
    metrics: tuple[Metric, ...], target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats
) -> dict[str, list[float]]:
    """Returns the 95 % interval of each metric, from 1000 resamples of the rows with a fixed seed.

    Args:
        metrics: names of the task's metrics.
        target: what the logits mean.
        logits_NC: float32, before softmax.
        label_N: int64 gold classes, or label_NC, ``NO_LABEL`` where unknown.
        score_N: float32 raw gold scores, NaN where unknown.

    Returns:
        ``[low, high]`` per metric that has one (see `score_interval`), empty if no row has gold.
    """
    random = np.random.default_rng(SEED)
    known = has_gold(target, label_N, score_N)
    if not known.any():
        return {}
    measures = MEASURES[target.kind]
    statistics = measures.statistics(target, logits_NC[known], label_N[known], score_N[known])
    # Every metric of a part is computed before the next part is drawn, so that only one part is in memory.
    parts = [[measures.functions[name](part) for name in metrics] for part in measures.resampled(random, statistics)]
    values = zip(metrics, map(np.concatenate, zip(*parts, strict=True)), strict=True)
    found = {name: score_interval(name, value_R, int(known.sum())) for name, value_R in values}
    return {name: ends for name, ends in found.items() if ends is not None}


def resampled_tallies(random: np.random.Generator, tallies_3NC: Floats64) -> Floats64:
    """Returns the sums [3, R, C] of resampled rows."""
    num_rows = tallies_3NC.shape[1]
    sums = []
    for _ in range(RESAMPLES):
        times_N = np.bincount(random.integers(num_rows, size=num_rows), minlength=num_rows)
        sums.append(times_N @ tallies_3NC)
    return np.stack(sums, axis=1)


class Measures(ABC):
    """The metrics of one kind of target. Rows without gold are left out beforehand.

    A metric is a function of statistics of one or more sets of rows. The same statistics of rows serve the whole dev
    split and its resamples.

    Attributes:
        functions: the metrics by name, which map the statistics of R sets of rows to values [R].
    """

    functions: Mapping[str, Callable[[Floats64], Floats64]]

    @abstractmethod
    def statistics(self, target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats) -> Floats64:
        """Returns the statistics of the rows that determine the metrics."""

    @abstractmethod
    def whole(self, statistics: Floats64) -> Floats64:
        """Returns the statistics as those of R = 1 set of rows."""

    @abstractmethod
    def resampled(self, random: np.random.Generator, statistics: Floats64) -> Iterator[Floats64]:
        """Yields the statistics of `RESAMPLES` resamples of the rows, in parts that fit into memory."""

    @abstractmethod
    def fidelity(self, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
        """See the function of this name."""

    def label_tallies(self, logits_NC: Floats, label_N: Ints) -> Floats64:
        """See the function of this name. Only for targets with labels."""
        raise NotImplementedError


class _ClassMeasures(Measures):
    functions = OF_COUNTS

    def statistics(self, target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats) -> Floats64:
        return confusion(label_N, logits_NC.argmax(axis=1), target.num_logits).astype(np.float64)

    def whole(self, statistics: Floats64) -> Floats64:
        return statistics[None]

    def resampled(self, random: np.random.Generator, statistics: Floats64) -> Iterator[Floats64]:
        # Metrics depend on the confusion matrix alone, and a multinomial draw of its cells is much faster than drawing
        # rows.
        num_rows = int(statistics.sum())
        drawn = random.multinomial(num_rows, statistics.ravel() / num_rows, size=RESAMPLES)
        yield drawn.reshape(RESAMPLES, *statistics.shape).astype(np.float64)

    def fidelity(self, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
        agreement = float((student_NC.argmax(axis=1) == teacher_NC.argmax(axis=1)).mean())
        return {"agreement": agreement, "kl": mean_kl(teacher_NC, student_NC)}

    def label_tallies(self, logits_NC: Floats, label_N: Ints) -> Floats64:
        counts_CC = confusion(label_N, logits_NC.argmax(axis=1), logits_NC.shape[1]).astype(np.float64)
        return np.stack([counts_CC.diagonal(), counts_CC.sum(axis=0), counts_CC.sum(axis=1)])


class _LabelMeasures(Measures):
    functions = OF_LABELS

    def statistics(self, target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats) -> Floats64:
        return tallies(logits_NC > 0, label_N)

    def whole(self, statistics: Floats64) -> Floats64:
        return np.asarray(statistics.sum(axis=1, keepdims=True))

    def resampled(self, random: np.random.Generator, statistics: Floats64) -> Iterator[Floats64]:
        yield resampled_tallies(random, statistics)

    def fidelity(self, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
        agreement = float(((student_NC > 0) == (teacher_NC > 0)).all(axis=1).mean())
        return {"agreement": agreement, "kl": mean_kl(_yes_and_no(teacher_NC), _yes_and_no(student_NC))}

    def label_tallies(self, logits_NC: Floats, label_N: Ints) -> Floats64:
        return np.asarray(tallies(logits_NC > 0, label_N).sum(axis=1))


class _ScoreMeasures(Measures):
    functions = OF_SCORES

    def statistics(self, target: Target, logits_NC: Floats, label_N: Ints, score_N: Floats) -> Floats64:
        return np.stack([predicted_scores(target, logits_NC), score_N]).astype(np.float64)

    def whole(self, statistics: Floats64) -> Floats64:
        return statistics[:, None]

    def resampled(self, random: np.random.Generator, statistics: Floats64) -> Iterator[Floats64]:
        num_rows, left = statistics.shape[1], RESAMPLES
        while left:
            count = min(left, max(1, CHUNK_VALUES // num_rows))
            left -= count
            yield statistics[:, random.integers(num_rows, size=(count, num_rows))]

    def fidelity(self, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
        error = student_NC[:, 0] - teacher_NC[:, 0]
        correlation = float(correlations(("pearson",), student_NC[:, 0], teacher_NC[:, 0])["pearson"][0])
        return {"pearson": correlation, "rmse": float(np.sqrt((error**2).mean()))}


class _BinMeasures(_ScoreMeasures):
    def fidelity(self, student_NC: Floats, teacher_NC: Floats) -> dict[str, float]:
        return MEASURES["classes"].fidelity(student_NC, teacher_NC)


MEASURES: dict[TargetKind, Measures] = {
    "classes": _ClassMeasures(),
    "labels": _LabelMeasures(),
    "bins": _BinMeasures(),
    "score": _ScoreMeasures(),
}
