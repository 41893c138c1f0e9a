"""Words and pairs of words without a vocabulary: hashed, in the manner of fastText, whose vectors it has not."""

from functools import partial
from typing import Any

from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

from distill.apps.results.baselines.regression import (
    Features,
    each_label,
    fit_regression,
    label_predictor,
    pair_features,
    predictor,
)
from distill.apps.results.rows import Rows
from distill.apps.results.system import System
from pipeline.tasks.target import Target

BUCKETS = 2**18
SGD = {"loss": "log_loss", "alpha": 1e-5, "average": True, "random_state": 0}


def fit(train: Rows, target: Target) -> System:
    """A logistic regression by averaged SGD on hashed words and pairs of words; for scores a ridge regression."""
    vectors = HashingVectorizer(ngram_range=(1, 2), n_features=BUCKETS).transform
    if target.kind == "score":
        return fit_regression(train, target, vectors, num_bytes=0)

    def features(texts1: Any, texts2: Any) -> Features:
        return vectors(texts1) if texts2 is None else pair_features(vectors(texts1), vectors(texts2))

    make, x_NP = partial(SGDClassifier, **SGD), features(train.texts1, train.texts2)
    if target.kind == "labels":
        models = each_label(make, x_NP, train.label_N)
        size = sum(model.coef_.size + 1 for model in models if not isinstance(model, bool))
        return System(target, label_predictor(models, features), size, 4 * size)
    model = make().fit(x_NP, train.label_N)
    size = model.coef_.size + model.intercept_.size
    return System(target, predictor(model, target, features), size, 4 * size)
