"""Refuses a teacher whose label order fits the gold labels worse than another order.

The known case is TextAttack's public MNLI teacher: its config has no label names, and with GLUE's order it scores 7 %
(QData/TextAttack issue 684).
"""

import math
import shlex
from collections.abc import Sequence

import numpy as np

from pipeline import console
from pipeline.arrays import Floats, Floats64, Ints
from pipeline.errors import ConfigError, TeacherError, did_you_mean
from pipeline.parsing import as_names
from pipeline.tasks.target import Target, has_gold, predicted_scores

SIGNIFICANCE = 1e-3  # of a better order, and of scores that decrease
OF_KNOWLEDGE = 0.05  # of an order that is better than the most frequent labels


def label_places(names: Sequence[str], labels: Sequence[str]) -> tuple[int, ...] | None:
    """Returns the position of each name among the labels. None unless both contain the same labels once.

    Case only counts if labels differ in nothing else.
    """
    # Exact spelling first, because a task may have labels that differ in case alone.
    for spelling in (str, str.lower):
        place = {spelling(label): number for number, label in enumerate(labels)}
        spelt = [spelling(name) for name in names]
        if len(place) == len(labels) and sorted(place) == sorted(spelt):
            return tuple(place[name] for name in spelt)
    return None


def stated_labels(stated: Sequence[str], labels: Sequence[str]) -> tuple[str, ...]:
    """Returns a task's labels in the order of ``--teacher-labels``. See `label_places`.

    Raises:
        ConfigError: unless each label is named once.
    """
    places = label_places(stated, labels)
    if places is not None:
        return tuple(labels[place] for place in places)
    known = {label.lower() for label in labels}
    wrong = [label for label in stated if label.lower() not in known]
    if wrong:
        raise ConfigError(f"--teacher-labels: unknown label {wrong[0]!r}. {did_you_mean(wrong[0], labels)}")
    raise ConfigError(f"--teacher-labels: name each of {', '.join(labels)} once, in the teacher's order")


def check_label_order(
    target: Target,
    teacher_name: str,
    labels: tuple[str, ...],
    logits_NC: Floats,
    label_N: Ints,
    score_N: Floats,
    is_stated: bool = False,
) -> None:
    """Refuses a claimed label order if another fits the gold significantly better.

    It is refused only if the other order explains significantly more rows. This is McNemar's exact test, corrected for
    the number of orders, on the rows where only one order is right, or where one is right for more labels. Chance is
    therefore not a reason to refuse a weak teacher. The other order must also be better than the most frequent labels.
    Otherwise, a teacher that answers every row alike would seem to have swapped labels.

    Args:
        target: the meaning of the logits.
        teacher_name: the name of the teacher, for the message.
        labels: the claimed names of the teacher's outputs, in its own order.
        logits_NC: float32 logits in the task's order under that claim.
        label_N: gold classes, or label_NC, ``NO_LABEL`` where unknown.
        score_N: gold scores, NaN where unknown.
        is_stated: whether ``--teacher-labels`` sets the order, which is then accepted with a warning.

    Raises:
        TeacherError: if another order fits better, naming the flag that sets it, or if scores are reversed or on
            another scale.
    """
    if target.has_labels:
        problem = _order_problem(target, labels, logits_NC, label_N, score_N)
    else:
        problem = _scores_problem(target, logits_NC, score_N)
    if problem is None:
        return
    if not is_stated:
        raise TeacherError(f"teacher {teacher_name}: {problem}")
    console.warn(f"teacher {teacher_name}: {problem}. Continuing with the order of --teacher-labels")


def _order_problem(
    target: Target, labels: tuple[str, ...], logits_NC: Floats, label_N: Ints, score_N: Floats
) -> str | None:
    known_N = has_gold(target, label_N, score_N)
    gold = label_N[known_N]
    if not len(gold):
        return None
    compare = _lists_right if target.has_label_lists else _classes_right
    best, claimed_right, best_right = compare(logits_NC[known_N], gold)
    # Bonferroni correction: the best of so many orders fits well by chance. Above 100 labels the factorial overflows.
    others = math.factorial(min(target.num_logits, 100)) - 1
    if not (
        _is_better(best_right, claimed_right, SIGNIFICANCE / others)
        and _is_better(best_right, _most_frequent_right(gold), OF_KNOWLEDGE)
    ):
        return None
    in_task_order = label_places(labels, target.names)
    assert in_task_order is not None, "only a teacher with the task's labels gets here"
    mended = [target.names[best[k]] for k in in_task_order]
    return (
        f"its labels are in another order than it claims. As {', '.join(labels)} it agrees "
        f"with {claimed_right.mean():.1%} of {len(gold):,} gold labels, as {', '.join(mended)} with "
        f"{best_right.mean():.1%}. If that is right, repeat with --teacher-labels {shlex.quote(as_names(mended))}"
    )


def _is_better(one_N: Floats64, other_N: Floats64, significance: float) -> bool:
    """Whether one order is right for more rows than another, by the exact sign test."""
    num_one, num_other = int((one_N > other_N).sum()), int((other_N > one_N).sum())
    if num_one <= num_other:
        return False
    # Imported here and below: the library takes more than a second, and every command of a teacher imports this module.
    from scipy.stats import binomtest

    return bool(binomtest(num_one, num_one + num_other, alternative="greater").pvalue <= significance)


def _most_frequent_right(gold: Ints) -> Floats64:
    """Returns whether the most frequent class is right for each row, or the share of its labels: 0 to 1."""
    if gold.ndim == 1:
        return np.asarray(gold == np.bincount(gold).argmax(), dtype=np.float64)
    return np.asarray((gold == (gold.mean(axis=0) > 0.5)).mean(axis=1))


def _classes_right(logits_NC: Floats, gold_N: Ints) -> tuple[Ints, Floats64, Floats64]:
    """Returns the best order, and whether the claimed and the best one are right for each row: 1 or 0."""
    predicted_N = logits_NC.argmax(axis=1)
    best_C = best_order(predicted_N, gold_N, logits_NC.shape[1])
    return best_C, (predicted_N == gold_N).astype(float), (best_C[predicted_N] == gold_N).astype(float)


def _lists_right(logits_NC: Floats, gold_NC: Ints) -> tuple[Ints, Floats64, Floats64]:
    """Returns the best order, and the share of each row's labels for which the claimed and the best one are right."""
    predicted_NC = (logits_NC > 0).astype(np.int64)
    best_C = _best_assignment(predicted_NC.T @ gold_NC)
    return best_C, (predicted_NC == gold_NC).mean(axis=1), (predicted_NC == gold_NC[:, best_C]).mean(axis=1)


def best_order(predicted_N: Ints, gold_N: Ints, num_classes: int) -> Ints:
    """Returns the one-to-one map from predicted to gold class [C] with the most right rows."""
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(counts, (predicted_N, gold_N), 1)
    return _best_assignment(counts)


def _best_assignment(counts_CC: Ints) -> Ints:
    """Returns the one-to-one map from rows to columns [C] with the largest sum of counts."""
    from scipy.optimize import linear_sum_assignment

    # The Hungarian algorithm finds the best of all C! orders in O(C^3).
    return np.asarray(linear_sum_assignment(counts_CC, maximize=True)[1])


def _scores_problem(target: Target, logits_NC: Floats, score_N: Floats) -> str | None:
    has_gold_N = np.isfinite(score_N)
    predicted, gold = predicted_scores(target, logits_NC)[has_gold_N], score_N[has_gold_N]
    if len(gold) < 3 or predicted.std() == 0 or gold.std() == 0:
        return None
    from scipy.stats import pearsonr

    result = pearsonr(predicted, gold)
    if result.statistic < 0 and result.pvalue < SIGNIFICANCE:
        return (
            f"its scores do not increase with the gold scores (correlation {result.statistic:.3f} over "
            f"{len(gold):,} rows). It was not trained for this task, or its scores mean the opposite"
        )
    slope = float(result.statistic * gold.std() / predicted.std())
    # A weak correlation makes the slope meaningless, so only a well-correlated teacher is judged by its scale.
    if result.statistic > 0.5 and not 0.5 < slope < 2:
        return (
            f"its scores are on another scale than the gold scores (gold = {slope:.2f} x teacher + …, gold from "
            f"{gold.min():g} to {gold.max():g}, teacher from {predicted.min():.2f} to {predicted.max():.2f}). "
            "Fine-tune a teacher on the task's scale with `distill finetune-teacher`"
        )
    return None
