"""Logistic or ridge regression on the features of sentences, or of pairs of them.

Shapes: N rows, F features of a sentence, P features of a row, C logits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge

from distill.apps.results.systems import Predict, Rows, System
from pipeline.arrays import Floats, Ints
from pipeline.tasks.target import Target

Features = Any  # numpy's array or a sparse matrix [N, F]
LEAST = -30.0  # the log probability of a label that no training row has; as a logit, its opposite is one of all rows


def pair_features(u_NF: Features, w_NF: Features) -> Features:
    """[|u - w| ; u * w ; their scalar product] of two sentences, [N, 2 F + 1]; dense or sparse as they are."""
    if sparse.issparse(u_NF):
        product_NF = u_NF.multiply(w_NF)
        return sparse.hstack([abs(u_NF - w_NF), product_NF, product_NF.sum(axis=1)]).tocsr()
    product_NF = u_NF * w_NF
    return np.hstack([abs(u_NF - w_NF), product_NF, product_NF.sum(axis=1, keepdims=True)])


def fit_regression(
    train: Rows, target: Target, vectors: Callable[[Any], Features], num_bytes: int, num_parameters: int = 0
) -> System:
    """A regression on vectors of sentences: logistic for labels, ridge for scores.

    Args:
        train: rows with gold.
        target: what the logits shall mean.
        vectors: makes features [N, F] of texts.
        num_bytes: of what makes the vectors.
        num_parameters: of what makes the vectors.
    """

    def features(texts1: Any, texts2: Any) -> Features:
        return vectors(texts1) if texts2 is None else pair_features(vectors(texts1), vectors(texts2))

    x_NP = features(train.texts1, train.texts2)
    if target.kind == "labels":
        models = each_label(partial(LogisticRegression, C=10, max_iter=1000), x_NP, train.label_N)
        own = sum(model.coef_.size + 1 for model in models if not isinstance(model, bool))
        return System(target, label_predictor(models, features), num_parameters + own, num_bytes + 4 * own)
    if target.kind == "classes":
        model = LogisticRegression(C=10, max_iter=1000).fit(x_NP, train.label_N)
    else:
        model = Ridge().fit(x_NP, train.score_N)
    own = model.coef_.size + np.size(model.intercept_)
    return System(target, predictor(model, target, features), num_parameters + own, num_bytes + 4 * own)


def each_label(make: Callable[[], Any], x_NP: Features, label_NC: Ints) -> list[Any]:
    """A model for each label that may hold by itself; of one that holds of all rows or of none only whether it does."""
    return [make().fit(x_NP, gold_N) if len(np.unique(gold_N)) > 1 else bool(gold_N[0]) for gold_N in label_NC.T]


def label_predictor(models: Sequence[Any], features: Callable[[Any, Any], Features]) -> Predict:
    """From texts to logits [N, C] by what `each_label` gives; a label without a model always holds, or never."""

    def logits(texts1: Any, texts2: Any) -> Floats:
        x_NP = features(texts1, texts2)
        logits_NC = np.empty((len(texts1), len(models)), dtype=np.float32)
        for k, model in enumerate(models):
            is_constant = isinstance(model, bool)
            logits_NC[:, k] = (-LEAST if model else LEAST) if is_constant else model.decision_function(x_NP)
        return logits_NC

    return logits


def predictor(model: Any, target: Target, features: Callable[[Any, Any], Features]) -> Predict:
    """From texts to logits [N, C] by a fitted model of scikit-learn."""

    def logits(texts1: Any, texts2: Any) -> Floats:
        x_NP = features(texts1, texts2)
        if target.kind == "score":
            return np.asarray(model.predict(x_NP), np.float32)[:, None]
        logits_NC = np.full((len(texts1), target.num_logits), LEAST, dtype=np.float32)
        logits_NC[:, model.classes_] = model.predict_log_proba(x_NP)
        return logits_NC

    return logits
