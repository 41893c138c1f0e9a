"""Spans of labelled words, and the scores of word labels.

The rules are those of CoNLL's script and of seqeval. seqeval itself is not used here: it has no wheel, it depends on
scikit-learn, and predictions need the spans themselves.

Shapes: N sentences, K names of spans, R resamples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.arrays import Floats64, Ragged
from pipeline.tasks.intervals import SEED, score_interval
from pipeline.tasks.metrics import micro_f1, resampled_tallies, scores_by_name
from pipeline.tasks.task import OUTSIDE, Metric

Tallies = dict[Metric, Floats64]  # counts of right, predicted and gold per metric [3, N, K]


class Span(NamedTuple):
    """A span: the words from ``start`` to before ``stop``."""

    start: int
    stop: int
    name: str


def spans(labels: Sequence[str]) -> list[Span]:
    """Returns the spans of a sentence from the label of each word. A span may begin with I-, also after another one."""
    found: list[Span] = []
    start, name = None, ""
    # The extra label ends a span that reaches the last word.
    for place, label in enumerate([*labels, OUTSIDE]):
        prefix, _, of = label.partition("-")
        # conlleval's rule: I- of another name ends the span and begins a new one.
        if start is not None and (prefix != "I" or of != name):
            found.append(Span(start, place, name))
            start = None
        if start is None and prefix != OUTSIDE:
            start, name = place, of
    return found


def begins_inside(labels: Sequence[str]) -> bool:
    """Whether a span begins with I-, where IOB2 has B-."""
    return any(labels[span.start].startswith("I") for span in spans(labels))


def span_names(names: Sequence[str]) -> list[str]:
    """Returns the names of spans in the names of the labels."""
    return list(dict.fromkeys(name.partition("-")[2] for name in names if name != OUTSIDE))


def word_tallies(names: Sequence[str], predicted: Ragged, gold: Ragged) -> Tallies:
    """The input of the scores.

    Args:
        names: the names of the labels, by number.
        predicted: the number of each word's predicted label, per sentence.
        gold: the number of each word's gold label, per sentence.
    """
    place = {name: number for number, name in enumerate(span_names(names))}
    of_spans = np.zeros((3, len(gold), len(place)))
    of_words = np.zeros((3, len(gold), 1))
    for row, (predicted_W, gold_W) in enumerate(zip(predicted.lists(), gold.lists(), strict=True)):
        of_words[:, row, 0] = sum(a == b for a, b in zip(predicted_W, gold_W, strict=True)), len(gold_W), len(gold_W)
        both = [set(spans([names[k] for k in labels])) for labels in (predicted_W, gold_W)]
        for kind, found in enumerate((both[0] & both[1], *both)):
            for span in found:
                of_spans[kind, row, place[span.name]] += 1
    return {"span_f1": of_spans, "accuracy": of_words}


def word_scores(metrics: Sequence[Metric], tallies: Tallies) -> dict[str, float]:
    """Returns the metrics of all sentences, empty without sentences. For words, F1 equals the accuracy."""
    found = {name: tallies[name] for name in metrics}
    return {name: float(micro_f1(t.sum(axis=1, keepdims=True))[0]) for name, t in found.items() if t.shape[1]}


def word_intervals(metrics: Sequence[Metric], tallies: Tallies) -> dict[str, list[float]]:
    """Returns the 95 % interval of each metric that has one, from resamples of the sentences with a fixed seed.

    See `score_interval`. Empty without sentences.
    """
    found = {}
    for name in metrics:
        if num_sentences := tallies[name].shape[1]:
            value_R = micro_f1(resampled_tallies(np.random.default_rng(SEED), tallies[name]))
            # Words of a sentence depend on one another, so sentences are counted as if each were one row.
            found[name] = score_interval(name, value_R, num_sentences)
    return {name: ends for name, ends in found.items() if ends is not None}


def scores_by_span(names: Sequence[str], tallies: Tallies) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and both counts of spans for each name that is gold or predicted."""
    return scores_by_name(span_names(names), tallies["span_f1"].sum(axis=1))
