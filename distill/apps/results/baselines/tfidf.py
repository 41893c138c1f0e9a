"""A bag of words: TF-IDF of words and pairs of words."""

from sklearn.feature_extraction.text import TfidfVectorizer

from distill.apps.results.baselines.regression import fit_regression
from distill.apps.results.rows import Rows
from distill.apps.results.system import System
from pipeline.tasks.target import Target


def fit(train: Rows, target: Target) -> System:
    """A regression on TF-IDF of words and pairs of words, of the training rows' vocabulary."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2)).fit([*train.texts1, *(train.texts2 or ())])
    words = "\n".join(vectorizer.vocabulary_)
    size = len(vectorizer.vocabulary_)
    return fit_regression(train, target, vectorizer.transform, len(words.encode()) + 4 * size, size)
