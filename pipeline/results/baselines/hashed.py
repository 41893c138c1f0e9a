"""Words and pairs of words without a vocabulary: hashed, in the manner of fastText, whose vectors it has not."""

from typing import Any

from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

from pipeline.results.baselines.regression import Features, fit_regression, pair_features, predictor
from pipeline.results.rows import Rows
from pipeline.results.system import System
from pipeline.tasks.target import Target

BUCKETS = 2**18


def fit(train: Rows, target: Target) -> System:
    """A logistic regression by averaged SGD on hashed words and pairs of words; for scores a ridge regression."""
    vectors = HashingVectorizer(ngram_range=(1, 2), n_features=BUCKETS).transform
    if target.kind == "score":
        return fit_regression(train, target, vectors, num_bytes=0)

    def features(texts1: Any, texts2: Any) -> Features:
        return vectors(texts1) if texts2 is None else pair_features(vectors(texts1), vectors(texts2))

    model = SGDClassifier(loss="log_loss", alpha=1e-5, average=True, random_state=0)
    model.fit(features(train.texts1, train.texts2), train.label_N)
    size = model.coef_.size + model.intercept_.size
    return System(target, predictor(model, target, features), size, 4 * size)
