"""What a user would pick instead of a student: fitted on the same rows, without any teacher.

Shapes: N rows, C logits.
"""

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distill.apps.results.systems import SCORE, Rows, System, read_rows
from pipeline.arrays import Floats
from pipeline.sets.reader import ExampleSet
from pipeline.tasks.metrics import score_logits
from pipeline.tasks.target import Target
from pipeline.tasks.task import TRAIN

MODEL2VEC = ("sklearn", "model2vec", "skeletoken", "transformers")
BUCKETS = 2**18
SGD = {"loss": "log_loss", "alpha": 1e-5, "average": True, "random_state": 0}
WORD = re.compile(r"\w\w")  # as scikit-learn counts them: single letters are none
MAX_CHARACTERS = 10_000_000  # of training rows; so many take some seconds


@dataclass(frozen=True)
class Baseline:
    """How a baseline is made.

    Attributes:
        make: fits it, by training rows, their target and the folder of model2vec's vectors.
        about: what it is, for the table's legend.
        libraries: what it needs.
        needs_vectors: whether it is made of model2vec's vectors, too.
        only_single: whether it reads single sentences with one label alone.
    """

    make: Callable[[Rows, Target, Path], System]
    about: str
    libraries: tuple[str, ...] = ("sklearn",)
    needs_vectors: bool = False
    only_single: bool = False

    @property
    def missing(self) -> list[str]:
        """The libraries that are not installed."""
        return [name for name in self.libraries if importlib.util.find_spec(name) is None]

    def fit(self, train: Rows, target: Target, vectors: Path) -> System:
        """Fits it on training rows, of a target of bins to their scores; the folder is that of model2vec's vectors."""
        return self.make(train, target if target.has_labels else SCORE, vectors)


def majority(train: Rows, target: Target, _: Path) -> System:
    """Returns a system that gives the commonest label of the training rows, those that most have, or the mean score."""
    answer_C = np.zeros(target.num_logits, dtype=np.float32)
    if target.kind == "classes":
        answer_C[np.bincount(train.label_N).argmax()] = 1
    elif target.kind == "labels":
        answer_C[:] = np.where(train.label_N.mean(axis=0) > 0.5, 1, -1)
    else:
        answer_C[0] = train.score_N.mean()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        return np.tile(answer_C, (len(texts1), 1))

    return System(target, logits, 0, 0)


def tfidf(train: Rows, target: Target, _: Path = Path()) -> System:
    """Fits a regression on TF-IDF of words and pairs of words, of the training rows' vocabulary."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    from distill.apps.results.regression import fit_regression

    vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit([*train.texts1, *(train.texts2 or ())])
    words = "\n".join(vectorizer.vocabulary_)
    size = len(vectorizer.vocabulary_)
    return fit_regression(train, target, vectorizer.transform, len(words.encode()) + 4 * size, size)


def hashed(train: Rows, target: Target, _: Path) -> System:
    """Fits a logistic regression by averaged SGD on hashed words and pairs of words; for scores a ridge regression.

    There is no vocabulary: it is in the manner of fastText, whose vectors it does not have.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier

    from distill.apps.results import regression

    vectors = HashingVectorizer(ngram_range=(1, 2), n_features=BUCKETS).transform
    if target.kind == "score":
        return regression.fit_regression(train, target, vectors, num_bytes=0)

    def features(texts1: Any, texts2: Any) -> Any:
        return vectors(texts1) if texts2 is None else regression.pair_features(vectors(texts1), vectors(texts2))

    make, x_NP = partial(SGDClassifier, **SGD), features(train.texts1, train.texts2)
    if target.kind == "labels":
        models = regression.each_label(make, x_NP, train.label_N)
        size = sum(model.coef_.size + 1 for model in models if not isinstance(model, bool))
        return System(target, regression.label_predictor(models, features), size, 4 * size)
    model = make().fit(x_NP, train.label_N)
    size = model.coef_.size + model.intercept_.size
    return System(target, regression.predictor(model, target, features), size, 4 * size)


def static(train: Rows, target: Target, folder: Path) -> System:
    """Fits a regression on model2vec's vectors in a folder."""
    from distill.apps.results.static_vectors import fit_frozen

    return fit_frozen(train, target, folder)


def tuned(train: Rows, target: Target, folder: Path) -> System:
    """Trains model2vec's vectors in a folder and a classifier on them."""
    from distill.apps.results.static_vectors import fit_tuned

    return fit_tuned(train, target, folder)


BASELINES = {
    "majority": Baseline(
        majority, "always the commonest label of the training rows, those that most have, or their mean score", ()
    ),
    "TF-IDF": Baseline(tfidf, "words and pairs of words by TF-IDF, logistic or ridge regression"),
    "hashed bigrams": Baseline(
        hashed,
        "words and pairs of words hashed into 2^18 numbers, logistic regression by averaged SGD or ridge regression: "
        "in the manner of fastText, which it is not",
    ),
    "model2vec": Baseline(static, "model2vec of the encoder, frozen, logistic or ridge regression", MODEL2VEC, True),
    "model2vec, tuned": Baseline(
        tuned,
        "the same with model2vec's own classifier, which trains the vectors, too, and reads single sentences alone",
        (*MODEL2VEC, "datasets"),
        True,
        True,
    ),
}


def bag_of_words_scores(logit_set: ExampleSet) -> dict[str, dict[str, float]]:
    """Returns the metrics of TF-IDF, fitted on a set's training rows with gold, by dev split.

    A teacher that is not better has nothing to teach. Empty if scikit-learn is not installed, there are no such rows
    or all have the same gold, or so many that it would take longer than seconds.
    """
    record, baseline = logit_set.record, BASELINES["TF-IDF"]
    if baseline.missing or TRAIN not in logit_set.splits or not record.has_text:
        return {}
    train = read_rows(logit_set, TRAIN)
    if not _is_enough(train) or sum(map(len, [*train.texts1, *(train.texts2 or ())])) > MAX_CHARACTERS:
        return {}
    system = baseline.fit(train, record.target, logit_set.root)
    scores = {}
    for split in logit_set.splits:
        rows = read_rows(logit_set, split)
        if split != TRAIN and len(rows):
            logits_NC = system.logits(rows.texts1, rows.texts2)
            scores[split] = score_logits(record.metrics, system.target, logits_NC, rows.label_N, rows.score_N)
    return scores


def _is_enough(train: Rows) -> bool:
    """Whether there is something to tell apart."""
    if not any(map(WORD.search, [*train.texts1, *(train.texts2 or ())])):
        return False
    return len(np.unique(train.label_N, axis=0)) > 1 or len(np.unique(train.score_N)) > 1
