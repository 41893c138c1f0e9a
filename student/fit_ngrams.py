"""Fits the n-gram part of a trained student, and chooses its weight beside the network.

Both are trained separately: on top of the n-grams' logits, encoders that read the order of words became worse. Rows
that did not train the student choose the weights of both, so on them it is no worse than one of the two alone, but
for the penalty of their choice if classes count the same.

Shapes: N rows, F features (the n-grams, and the share of them that two texts have in common), C logits.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize

from pipeline import console
from pipeline.arrays import Floats, stacked
from pipeline.tasks.target import Target, has_gold, probabilities
from pipeline.tasks.task import TRAIN
from pipeline.training.best_epoch import may_select
from student.data import Examples, gold_tensor, row_weights
from student.lessons.examples import student_logits
from student.losses.logit_losses import task_loss
from student.model.ngrams import Counts, Ngrams, NgramSizes, num_rows_for, spelled
from student.model.student import Student, TaskStudent
from student.settings import Loss
from student.training_data import StudentTraining

PENALTIES = (0.3, 1.0, 3.0)  # of the squares of weights, for features of about 1 in total
SHARE_OF_RARITY = 0.2  # an n-gram in few rows counts up to ten times as much, so this makes features about 1 in total
MOST_TRAINED = 100_000  # rows, which are fitted in a minute
MOST_STEPS, TOLERANCE = 200, 1e-3  # of conjugate gradients
PENALTY_OF_CHOICE = 10.0  # of the squares of a bias and of the network's factor minus 1, beside the losses of all rows
LARGEST = 127


class Fitted(NamedTuple):
    """A fit, and its weight beside the network.

    Attributes:
        loss: that of the rows that choose, with the penalty of their choice.
        network: the factor of the network's logits.
        ngrams: the factor of the n-grams' outputs.
        bias_C: what is added to the sum of both, 0 without ``--class-weights``.
        weight_FC: the weights of features.
    """

    loss: float
    network: float
    ngrams: float
    bias_C: Floats
    weight_FC: Floats


def add_ngrams(training: StudentTraining, student: TaskStudent) -> None:
    """Adds the n-gram part to a student, if ``--ngrams`` is given and its best weight is not 0, and saves it."""
    if not training.settings.head.ngrams:
        return
    assert isinstance(student, Student), "build_config refuses the flag for labelled words"
    # A run that was killed later has saved a student with this part.
    student.ngrams, student.config = None, student.config.model_copy(update={"ngrams": None})
    choosing = next((rows for split, rows in training.dev_splits.items() if may_select(split)), None)
    if choosing is None:
        console.warn("--ngrams: left out, because no rows can choose their weight. Give --held-out 0.1")
        return
    config, loss = student.config, training.settings.loss
    train = _some(training.splits[TRAIN], training.settings.seed)
    console.note(f"--ngrams: fitting n-grams of words and characters to {len(train):,} rows")
    spelling_Y, start_V = spelled(training.data.logit_set.tokenizer_json(), config.num_tokens)
    sizes = NgramSizes(num_rows=num_rows_for(config.target.num_logits), num_bytes=len(spelling_Y))
    part = Ngrams(sizes, config.num_tokens, config.target.num_logits, config.num_sequences == 2)
    part.spelling_Y, part.start_V = spelling_Y, start_V
    mean_C, fits = _fits(loss, config.target, train, part)
    seen_NF, network_NC = _features(part.count(stacked(choosing.sequences))), student_logits(student, choosing)
    best = min(
        (_weighed(loss, config.target, choosing, network_NC, mean_C + seen_NF @ own_FC, own_FC) for own_FC in fits),
        key=lambda one: one.loss,
    )
    if not best.ngrams:
        console.note("--ngrams: left out, because the network alone is best on the rows that choose")
        return
    _fill(part, best, mean_C)
    student.ngrams, student.config = part, config.model_copy(update={"ngrams": sizes})
    student.save(training.folder)
    share = best.ngrams * np.std(seen_NF @ best.weight_FC)
    share /= share + best.network * np.std(network_NC)
    console.note(f"--ngrams: {share:.0%} of the logits' spread is theirs, chosen by {len(choosing):,} rows")


def _fits(loss: Loss, target: Target, train: Examples, part: Ngrams) -> tuple[Floats, list[Floats]]:
    """Returns the mean of the goals [C], and per penalty the weights of features [F, C] that add to it."""
    goal_NC = _goals(target, train, loss.alpha)
    counts = part.count(stacked(train.sequences))
    num_rows_F = np.bincount(counts.weighted_NF.indices, minlength=counts.weighted_NF.shape[1])
    rarity_F = SHARE_OF_RARITY * (1 + np.log((1 + len(train)) / (1 + num_rows_F)))
    scale_F = np.append(rarity_F, 1).astype(np.float32)
    # In a weighted regression, features and goals are multiplied by the roots of the weights.
    weight_N = row_weights(loss.class_weights, train)
    root_N, mean_C = np.sqrt(weight_N), np.average(goal_NC, axis=0, weights=weight_N).astype(np.float32)
    x_NF = (sparse.diags(root_N) @ _features(counts) @ sparse.diags(scale_F)).tocsr()
    y_NC = root_N[:, None] * (goal_NC - mean_C)
    return mean_C, [scale_F[:, None] * _ridge(x_NF, y_NC, penalty) for penalty in PENALTIES]


def _some(rows: Examples, seed: int) -> Examples:
    """Returns all rows, or of very many some."""
    if len(rows) <= MOST_TRAINED:
        return rows
    return rows.taken(np.sort(np.random.default_rng(seed).choice(len(rows), MOST_TRAINED, replace=False)))


def _features(counts: Counts) -> sparse.csr_matrix:
    weighted_NF = sparse.diags(1 / counts.length_N) @ counts.weighted_NF.astype(np.float32)
    return sparse.hstack([weighted_NF, counts.shared_N[:, None]], format="csr")


def _goals(target: Target, rows: Examples, alpha: float) -> Floats:
    """Returns what the n-grams are fitted to, [N, C]: the mixture of gold and teacher, as probabilities or scores.

    Of labels that hold each by itself, -1 to 1: their logits are positive where a label is likelier than not.
    """
    teacher_NC = rows.teacher_NC if target.is_score else probabilities(target, rows.teacher_NC)
    gold: Any = target.gold(rows.label_N, rows.score_N)
    if target.is_score:
        gold = gold[:, None]
    elif not target.has_label_lists:
        gold = np.eye(target.num_logits)[gold]
    has_N = has_gold(target, rows.label_N, rows.score_N)
    goal_NC = np.where(has_N[:, None], alpha * gold + (1 - alpha) * teacher_NC, teacher_NC).astype(np.float32)
    return 2 * goal_NC - 1 if target.has_label_lists else goal_NC


def _ridge(x_NF: sparse.csr_matrix, y_NC: Floats, penalty: float) -> Floats:
    """Returns the weights [F, C] of a ridge regression, by conjugate gradients for all columns at once."""
    # There are more features than rows, so the solution is sought as a sum of rows.
    sum_NC, rest_NC, way_NC = np.zeros_like(y_NC), y_NC.copy(), y_NC.copy()
    left_C = (rest_NC**2).sum(axis=0)
    enough_C = TOLERANCE**2 * left_C
    for _ in range(MOST_STEPS):
        moved_NC = x_NF @ (x_NF.T @ way_NC) + penalty * way_NC
        step_C = left_C / np.maximum((way_NC * moved_NC).sum(axis=0), np.finfo(np.float32).tiny)
        sum_NC += step_C * way_NC
        rest_NC -= step_C * moved_NC
        before_C, left_C = left_C, (rest_NC**2).sum(axis=0)
        if (left_C <= enough_C).all():
            break
        way_NC = rest_NC + left_C / np.maximum(before_C, np.finfo(np.float32).tiny) * way_NC
    return np.asarray(x_NF.T @ sum_NC)


def _weighed(
    loss: Loss, target: Target, rows: Examples, network_NC: Floats, output_NC: Floats, weight_FC: Floats
) -> Fitted:
    """Returns the weights of network and n-grams, and their bias, with the least loss of the rows that choose."""
    parts = torch.from_numpy(np.stack([network_NC, output_NC])).double()
    teacher_NC, gold = torch.from_numpy(rows.teacher_NC).double(), gold_tensor(target, rows)
    weight_N = torch.from_numpy(row_weights(loss.class_weights, rows))
    # A fit remembers its few rows of a rare class, which weigh much, and so expects too few other rows of that class.
    # If all rows weigh the same, a bias is small, and too few rows choose it: on 1,000 pairs of QNLI it costs a point.
    is_balanced = loss.class_weights is not None
    bounds = [(0, None)] * 2 + [(None, None) if is_balanced else (0, 0)] * network_NC.shape[1]

    def loss_of(values: Floats) -> tuple[float, Floats]:
        factors_and_bias = torch.tensor(values, requires_grad=True)
        factors, bias_C = factors_and_bias[:2], factors_and_bias[2:]
        logits_NC = torch.einsum("k,knc->nc", factors, parts) + bias_C
        mean = task_loss(target, logits_NC, teacher_NC, gold, loss.alpha, weight_B=weight_N)
        # Seven rows of a rare class, weighing much, once took a network out that was worth eight points of macro F1.
        choice = (bias_C**2).sum() + is_balanced * (1 - factors[0]) ** 2
        penalised = mean + PENALTY_OF_CHOICE * choice / (2 * len(rows))
        [gradient] = torch.autograd.grad(penalised, factors_and_bias)
        return penalised.item(), gradient.numpy()

    start = np.append(np.ones(2), np.zeros(network_NC.shape[1]))
    found = minimize(loss_of, start, jac=True, bounds=bounds, method="L-BFGS-B")
    return Fitted(float(found.fun), float(found.x[0]), float(found.x[1]), found.x[2:], weight_FC)


def _fill(part: Ngrams, best: Fitted, mean_C: Floats) -> None:
    """Writes the weights of a fit into the n-gram part, rounded to int8."""
    *_, num_logits = part.weight_GRC.shape
    weight_FC, overlap_C = best.ngrams * best.weight_FC[:-1], best.ngrams * best.weight_FC[-1]
    scale_C = np.maximum(np.abs(weight_FC).max(axis=0), np.finfo(np.float32).tiny) / LARGEST
    numbers_FC = np.round(weight_FC / scale_C).astype(np.int8)
    part.weight_GRC = torch.from_numpy(numbers_FC.reshape(-1, part.weight_GRC.shape[1], num_logits))
    part.scale_C, part.overlap_C = torch.from_numpy(scale_C), torch.from_numpy(overlap_C)
    part.bias_C = torch.from_numpy((best.ngrams * mean_C + best.bias_C).astype(np.float32))
    part.network = torch.tensor(best.network)
