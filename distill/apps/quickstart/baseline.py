"""The strong, cheap baseline of ``distill quickstart``: n-grams of words and characters with a tuned linear model."""

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from distill.apps.results.systems import Rows, input_features
from pipeline.arrays import Floats
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target
from pipeline.tasks.task import Metric

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)  # of the linear model, of which folds of the training rows choose one
PENALTIES = (0.3, 1.0, 3.0, 10.0)  # of the ridge for scores
FOLDS = 3
MOST_FEATURES = 200_000


@dataclass(frozen=True)
class Baseline:
    """What a bag of n-grams reaches on the rows that nobody trained on."""

    scores: dict[str, float]
    num_bytes: int


def has_baseline(target: Target) -> bool:
    """Whether scikit-learn is installed, and a bag of words can answer such a task at all."""
    return importlib.util.find_spec("sklearn") is not None and target.kind in ("classes", "labels", "score")


def fit_baseline(train: Rows, test: Rows, target: Target, metrics: tuple[Metric, ...]) -> Baseline:
    """Fits the baseline on gold, and scores it.

    Args:
        train: rows with gold, of which folds choose the strength of the regularisation.
        test: rows that chose nothing.
        target: what logits mean.
        metrics: of the task.
    """
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    gold, features = train.label_N, _features()
    features.fit([*train.texts1, *(train.texts2 or ())])
    x_NF, test_NF = (input_features(features.transform, rows.texts1, rows.texts2) for rows in (train, test))
    if target.kind == "score":
        model: Any = GridSearchCV(Ridge(), {"alpha": PENALTIES}, cv=FOLDS).fit(x_NF, train.score_N)
        logits_NC = model.predict(test_NF)[:, None].astype(np.float32)
    else:
        # Balanced: otherwise rare classes are never predicted, and the macro F1 to beat would be too low.
        one = LinearSVC(class_weight="balanced")
        rare = min(np.bincount(gold)[np.unique(gold)]) if gold.ndim == 1 else FOLDS
        grid = {"C": STRENGTHS} if gold.ndim == 1 else {"estimator__C": STRENGTHS}
        search = GridSearchCV(one if gold.ndim == 1 else OneVsRestClassifier(one), grid, cv=max(2, min(FOLDS, rare)))
        model = search.fit(x_NF, gold)
        logits_NC = _all_classes(model, model.decision_function(test_NF), target)
    found = score_logits(metrics, target, logits_NC, test.label_N, test.score_N)
    return Baseline(found, 4 * x_NF.shape[1] * (1 + logits_NC.shape[1]))


def _features() -> Any:
    """Words and pairs of words, and characters of words: the latter cover inflections and misspellings."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, max_features=MOST_FEATURES)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, max_features=MOST_FEATURES)
    return make_union(words, characters)


def _all_classes(model: Any, decision: Floats, target: Target) -> Floats:
    """Decisions as logits [N, C]: of two classes scikit-learn has one column, and none of classes without a row."""
    if decision.ndim == 1:
        decision = np.stack([-decision, decision], axis=1)
    if target.kind == "labels":
        return decision.astype(np.float32)
    logits_NC = np.full((len(decision), target.num_logits), -1e9, dtype=np.float32)
    logits_NC[:, model.classes_] = decision
    return logits_NC
