"""The baselines: models that a user would choose instead of a student, fitted on the same rows."""

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distill.apps.baseline import TUNED_CHARACTERS, fit_baseline, fit_on_teacher, is_quick
from distill.apps.cells import content_sha256, weights_of
from distill.apps.linear import LEAST, fit_regression, vocabulary_size
from distill.apps.systems import SCORE, Rows, System
from pipeline.arrays import Floats
from pipeline.files import make_folder
from pipeline.tasks.target import Target

TUNED = f", tuned by cross-validation on up to {TUNED_CHARACTERS:,} characters"
MAX_CHARACTERS = 60_000_000
MODEL2VEC = ("sklearn", "model2vec", "skeletoken", "transformers")
BUCKETS = 2**18
SGD = {"loss": "log_loss", "alpha": 1e-5, "average": True, "random_state": 0}


@dataclass(frozen=True)
class Baseline:
    """A baseline and its requirements.

    Attributes:
        make: fits it to training rows, with their target and the folder of model2vec's vectors.
        about: its description for the legend of the table.
        libraries: the libraries that it needs.
        from_teacher: whether it learns the teacher's outputs, for all rows that a student learns from. Default: gold.
        needs_vectors: whether it needs model2vec's vectors.
        max_characters: of the rows that it can be fitted to in minutes and gigabytes.
        only_single: whether it only supports single sentences with one label.
    """

    make: Callable[[Rows, Target, Path], System]
    about: str
    libraries: tuple[str, ...] = ("sklearn",)
    from_teacher: bool = False
    needs_vectors: bool = False
    max_characters: int | None = None
    only_single: bool = False

    @property
    def missing(self) -> list[str]:
        """The libraries that are not installed."""
        return [name for name in self.libraries if importlib.util.find_spec(name) is None]

    def fit(self, train: Rows, target: Target, vectors: Path) -> System:
        """Fits it to training rows. If the target has bins, fits it to their scores, but not to a teacher's bins."""
        return self.make(train, target if target.has_labels or self.from_teacher else SCORE, vectors)


def majority(train: Rows, target: Target, _: Path) -> System:
    """Returns a system that predicts the most frequent label, all labels of most rows, or the mean score."""
    answer_C = np.zeros(target.num_logits, dtype=np.float32)
    if target.has_classes:
        answer_C[np.bincount(train.label_N).argmax()] = 1
    elif target.has_label_lists:
        # For several labels, the best constant prediction contains the labels of more than half of the rows.
        answer_C[:] = np.where(train.label_N.mean(axis=0) > 0.5, 1, -1)
    else:
        answer_C[0] = train.score_N.mean()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        return np.tile(answer_C, (len(texts1), 1))

    return System(target, logits, 0, 0)


def tfidf(train: Rows, target: Target, _: Path = Path()) -> System:
    """Fits a regression on TF-IDF of words and pairs of words. The vocabulary is that of the training rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit(train.texts)
    num_terms, num_bytes = vocabulary_size(vectorizer)
    return fit_regression(train, target, vectorizer.transform, num_bytes, num_terms)


def hashed(train: Rows, target: Target, _: Path) -> System:
    """Fits a logistic regression by averaged SGD, or a ridge regression, on hashed words and pairs of words.

    The model has no vocabulary. It resembles fastText, but without its vectors.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier

    # Hashing needs no vocabulary, so the model's size does not grow with the training rows.
    vectors = HashingVectorizer(ngram_range=(1, 2), n_features=BUCKETS).transform
    return fit_regression(train, target, vectors, num_bytes=0, classifier=partial(SGDClassifier, **SGD))


def distil(encoder: str, folder: Path) -> Path:
    """Writes model2vec's vectors of an encoder, with model2vec's defaults, unless they exist.

    Returns: Their folder, which belongs to this encoder.
    """
    from model2vec.distill import distill

    own = folder / content_sha256([encoder, *weights_of(encoder)])[:16]
    if own.exists():
        return own
    # A rename at the end: a kill while model2vec writes must not leave a folder that looks complete.
    unfinished = own.with_name(f"{own.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(unfinished)
    distill(encoder, device="cpu").save_pretrained(unfinished)
    return unfinished.rename(own)


def static(train: Rows, target: Target, folder: Path) -> System:
    """Fits a regression on model2vec's vectors in a folder."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder)

    def vectors(texts: Any) -> Floats:
        return np.asarray(model.encode(list(texts), use_multiprocessing=False), dtype=np.float32)

    num_bytes = model.embedding.nbytes + len(model.tokenizer.to_str().encode())
    return fit_regression(train, target, vectors, num_bytes, model.embedding.size)


def tuned(train: Rows, target: Target, folder: Path) -> System:
    """Trains model2vec's vectors in a folder and a classifier on them, with model2vec's own defaults."""
    from model2vec import StaticModel
    from model2vec.train import StaticModelForClassification

    model = StaticModelForClassification.from_static_model(model=StaticModel.from_pretrained(folder))
    model.fit(train.texts1, train.label_N.tolist(), device="cpu")
    size = sum(parameter.numel() for parameter in model.parameters())
    classes = [int(name) for name in model.classes]
    pipeline = model.to_pipeline()

    def logits(texts1: Sequence[str], texts2: Sequence[str] | None) -> Floats:
        assert texts2 is None, "model2vec's classifier does not support pairs"
        logits_NC = np.full((len(texts1), target.num_logits), LEAST, dtype=np.float32)
        probability_NC = pipeline.predict_proba(list(texts1), use_multiprocessing=False)
        # model2vec omits labels without a training row and may predict a probability of 0, whose logarithm is infinite.
        logits_NC[:, classes] = np.log(np.maximum(probability_NC, np.exp(LEAST)))
        return logits_NC

    return System(target, logits, size, 4 * size + len(pipeline.model.tokenizer.to_str().encode()))


BASELINES = {
    "majority": Baseline(
        majority,
        "always the most frequent label of the training rows, the labels of more than half of them, or their "
        "mean score",
        (),
    ),
    "TF-IDF": Baseline(tfidf, "words and pairs of words by TF-IDF, logistic or ridge regression"),
    "hashed bigrams": Baseline(
        hashed,
        "words and pairs of words hashed into 2^18 numbers, logistic regression by averaged SGD or ridge "
        "regression. It resembles fastText, but is not fastText",
    ),
    "n-grams": Baseline(
        lambda train, target, _: fit_baseline(train, target, is_quick(train)),
        f"TF-IDF of words, pairs of words and characters, balanced linear SVM or ridge regression{TUNED}",
        max_characters=MAX_CHARACTERS,
    ),
    "n-grams + teacher": Baseline(
        lambda train, target, _: fit_on_teacher(train, target, is_quick(train)),
        f"the same features, ridge regression on the teacher's outputs for all rows of the first student{TUNED}",
        from_teacher=True,
        max_characters=MAX_CHARACTERS,
    ),
    "model2vec": Baseline(
        static, "model2vec of the encoder, frozen, logistic or ridge regression", MODEL2VEC, needs_vectors=True
    ),
    "model2vec, tuned": Baseline(
        tuned,
        "model2vec of the encoder with model2vec's own classifier, which also trains the vectors and only "
        "supports single sentences",
        (*MODEL2VEC, "datasets"),
        needs_vectors=True,
        only_single=True,
    ),
}
