"""What a user would pick instead of a student: fitted on the same rows, without any teacher; a file for each."""

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from distill.apps.results.rows import Rows
from distill.apps.results.scores import SCORE
from distill.apps.results.system import System
from pipeline.tasks.target import Target

MODEL2VEC = ("sklearn", "model2vec", "skeletoken", "transformers")


@dataclass(frozen=True)
class Baseline:
    """How a baseline is made.

    Attributes:
        module: the file beside this one with its function ``fit``.
        about: what it is, for the table's legend.
        libraries: what it needs.
        needs_vectors: whether it is made of model2vec's vectors, too.
        only_single: whether it reads single sentences with one label alone.
    """

    module: str
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
        target = target if target.has_labels else SCORE
        module = importlib.import_module(f"{__name__}.{self.module}")  # scikit-learn may not be installed
        system: System = module.fit(train, target, vectors) if self.needs_vectors else module.fit(train, target)
        return system


BASELINES = {
    "majority": Baseline(
        "majority", "always the commonest label of the training rows, those that most have, or their mean score", ()
    ),
    "TF-IDF": Baseline("tfidf", "words and pairs of words by TF-IDF, logistic or ridge regression"),
    "hashed bigrams": Baseline(
        "hashed",
        "words and pairs of words hashed into 2^18 numbers, logistic regression by averaged SGD or ridge regression: "
        "in the manner of fastText, which it is not",
    ),
    "model2vec": Baseline(
        "static_vectors", "model2vec of the encoder, frozen, logistic or ridge regression", MODEL2VEC, True
    ),
    "model2vec, tuned": Baseline(
        "tuned_vectors",
        "the same with model2vec's own classifier, which trains the vectors, too, and reads single sentences alone",
        (*MODEL2VEC, "datasets"),
        True,
        True,
    ),
}
