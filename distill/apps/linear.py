"""Linear models of scikit-learn on features of texts, as systems.

Shapes: N rows, C classes, F features, P features of an input.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from distill.apps.systems import Predict, Rows, System
from pipeline.arrays import Floats, Ints
from pipeline.tasks.target import Target

Features = Any  # numpy's array or a sparse matrix [N, F]
# Logit of a label without training rows. A label that all training rows have gets -LEAST.
LEAST = -30.0


def pair_features(u_NF: Features, w_NF: Features) -> Features:
    """Returns |u - w|, u * w and the scalar product of two sentences, [N, 2 F + 1], dense or sparse like the inputs."""
    # Sparse matrices have no broadcasting, and dense ones of TF-IDF's width would not fit into memory.
    if sparse.issparse(u_NF):
        product_NF = u_NF.multiply(w_NF)
        return sparse.hstack([abs(u_NF - w_NF), product_NF, product_NF.sum(axis=1)]).tocsr()
    product_NF = u_NF * w_NF
    return np.hstack([abs(u_NF - w_NF), product_NF, product_NF.sum(axis=1, keepdims=True)])


def input_features(vectors: Callable[[Any], Features], texts1: Any, texts2: Any) -> Features:
    """Returns features [N, F] of texts, or of pairs by comparing their sentences.

    ``vectors`` makes the features of one text.
    """
    return vectors(texts1) if texts2 is None else pair_features(vectors(texts1), vectors(texts2))


def fit_regression(
    train: Rows,
    target: Target,
    vectors: Callable[[Any], Features],
    num_bytes: int,
    num_parameters: int = 0,
    classifier: Callable[[], Any] | None = None,
) -> System:
    """A regression on vectors of sentences: logistic for labels, ridge for scores.

    Args:
        train: rows with gold.
        target: what the logits mean.
        vectors: makes features [N, F] of texts.
        num_bytes: the size of the model that makes the vectors.
        num_parameters: the number of parameters of the model that makes the vectors.
        classifier: makes a logistic regression. Default: scikit-learn's, fitted by L-BFGS.
    """
    from sklearn.linear_model import LogisticRegression, Ridge  # only the extra `results` installs scikit-learn

    features = partial(input_features, vectors)
    classifier = classifier or partial(LogisticRegression, C=10, max_iter=1000)
    x_NP = features(train.texts1, train.texts2)
    if target.has_label_lists:
        model: Any = each_label(classifier, x_NP, train.label_N)
    elif target.has_classes:
        model = classifier().fit(x_NP, train.label_N)
    else:
        model = Ridge().fit(x_NP, train.score_N)
    own = num_weights(model)
    return System(target, predictor(model, target, features), num_parameters + own, num_bytes + 4 * own)


def num_weights(model: Any) -> int:
    """Returns the number of coefficients and intercepts of a linear model, or of the models of `each_label`."""
    models = model if isinstance(model, list) else [model]
    return sum(one.coef_.size + np.size(one.intercept_) for one in models if not isinstance(one, bool))


def vocabulary_size(vectorizer: Any) -> tuple[int, int]:
    """Returns how many terms a fitted TF-IDF vectorizer has, and the bytes of their texts and weights."""
    terms = vectorizer.vocabulary_
    return len(terms), len("\n".join(terms).encode()) + 4 * len(terms)


def each_label(make: Callable[[], Any], x_NP: Features, label_NC: Ints) -> list[Any]:
    """Fits a binary model per label. For a label that holds for all rows or for no row, stores only that constant."""
    return [make().fit(x_NP, gold_N) if len(np.unique(gold_N)) > 1 else bool(gold_N[0]) for gold_N in label_NC.T]


def predictor(model: Any, target: Target, features: Callable[[Any, Any], Features]) -> Predict:
    """Returns a function from texts to logits [N, C].

    Args:
        model: a fitted classifier or regression of scikit-learn, or the models of `each_label`.
        target: what the logits mean.
        features: makes features [N, F] of texts.
    """

    def logits(texts1: Any, texts2: Any) -> Floats:
        x_NF = features(texts1, texts2)
        if not target.has_labels:
            return np.asarray(model.predict(x_NF), np.float32)[:, None]
        logits_NC = np.full((len(texts1), target.num_logits), LEAST, dtype=np.float32)
        if target.has_label_lists:
            for k, one in enumerate(model):
                is_constant = isinstance(one, bool)
                logits_NC[:, k] = (-LEAST if one else LEAST) if is_constant else one.decision_function(x_NF)
            return logits_NC
        # scikit-learn outputs only classes that occur in its training rows. The others keep the lowest logit.
        logits_NC[:, model.classes_] = _class_logits(model, x_NF)
        return logits_NC

    return logits


def _class_logits(model: Any, x_NF: Features) -> Floats:
    """Returns log probabilities, or distances from the boundaries for a model without probabilities."""
    if hasattr(model, "predict_log_proba"):
        return np.asarray(model.predict_log_proba(x_NF))
    decision = np.asarray(model.decision_function(x_NF))
    # scikit-learn outputs one column for two classes.
    return np.stack([-decision, decision], axis=1) if decision.ndim == 1 else decision
