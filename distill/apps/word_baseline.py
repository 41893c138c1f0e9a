"""The baseline of labelled words: a linear model of each word, its affixes and shape, and two words on either side.

Shapes: W words of all sentences, F features.
"""

import re
import warnings
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distill.apps.baseline import MOST_FEATURES, TUNED_CHARACTERS, USUAL_STRENGTH, best_strength
from distill.apps.linear import num_weights, vocabulary_size
from pipeline import console
from pipeline.arrays import Ragged, ragged
from pipeline.errors import ConfigError
from pipeline.sets.kinds.token_labels import TokenLabelSet
from pipeline.tasks.spans import word_scores, word_tallies
from pipeline.tasks.task import TRAIN, Metric

NAME = "words, two to either side"
REACH = 2
AFFIXES = range(1, 5)  # characters


def word_features(words: Sequence[str]) -> list[list[str]]:
    """Returns the features of each word of a sentence."""
    edge = [""] * REACH
    around = [*edge, *map(str.lower, words), *edge]
    return [
        [f"{k}:{around[place + k]}" for k in range(2 * REACH + 1)]
        + [f"{word[:n]}-" for n in AFFIXES]
        + [f"-{word[-n:]}" for n in AFFIXES]
        + [f"={shape_of(word)}"]
        for place, word in enumerate(words)
    ]


def shape_of(word: str) -> str:
    """Returns a word with X for its capitals, x for small letters and 9 for digits, and one of several in a row."""
    letters = "".join("X" if c.isupper() else "x" if c.isalpha() else "9" if c.isdigit() else c for c in word)
    return re.sub(r"(.)\1+", r"\1", letters)


def read_sentences(logit_set: TokenLabelSet, split: str) -> pa.Table:
    """Returns the words of a split and their labels."""
    parts = (part for shard in logit_set.shards(split) for part in logit_set.read_shard(shard))
    return pa.concat_tables(part.select(["words", "label"]) for part in parts)


def word_baseline_scores(
    logit_set: TokenLabelSet, splits: dict[str, pa.Table], metrics: tuple[Metric, ...]
) -> tuple[dict[str, dict[str, float]], int]:
    """Fits the baseline on the gold of a set's training rows, and scores it.

    Args:
        logit_set: the set.
        splits: the sentences to score, with the columns words and label.
        metrics: the metrics of the task.

    Returns: The metrics by split, and the bytes of the fitted model with its features.

    Raises:
        ConfigError: if all training words have one label.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.svm import LinearSVC

    names, (train, gold) = logit_set.record.target.names, _with_gold(read_sentences(logit_set, TRAIN))
    if len(np.unique(gold.flat)) < 2:
        raise ConfigError("--baseline: all words of the training rows have the same label. Remove the flag.")
    console.note(f"--baseline: fitting a linear model of a word and two to either side on {len(train):,} sentences")
    features = CountVectorizer(analyzer=list, binary=True, max_features=MOST_FEATURES, dtype=np.float32)
    x_WF = features.fit_transform(_by_word(train))
    is_quick = sum(len(word) for words in train for word in words) <= TUNED_CHARACTERS
    with warnings.catch_warnings():
        # A fit that stops early is a slightly weaker baseline.
        warnings.simplefilter("ignore", ConvergenceWarning)
        strength = best_strength(LinearSVC(), x_WF, gold.flat) if is_quick else USUAL_STRENGTH
        model = LinearSVC(C=strength).fit(x_WF, gold.flat)
    scores = {}
    for split, rows in splits.items():
        sentences, own = _with_gold(rows)
        if sentences:
            predicted = Ragged(model.predict(features.transform(_by_word(sentences))), own.offsets)
            scores[split] = word_scores(metrics, word_tallies(names, predicted, own))
    _, num_bytes = vocabulary_size(features)
    return scores, num_bytes + 4 * num_weights(model)


def _with_gold(rows: pa.Table) -> tuple[list[list[str]], Ragged]:
    """Returns the words of sentences with gold, and the numbers of their labels."""
    rows = rows.filter(pc.is_valid(rows.column("label")))
    return rows.column("words").to_pylist(), ragged(rows.column("label"))


def _by_word(sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    return [features for words in sentences for features in word_features(words)]
