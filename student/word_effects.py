"""Importance of the words of an input: the student's predictions without each of them.

A word is left out and not masked, which is fair to every student. A student that was not trained with [MASK] has a
neutral row for it, or the teacher's vector, which does not mean a missing word. Shapes: N inputs, W words of all
inputs, C logits.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np

from pipeline.arrays import Floats, Floats64
from pipeline.tasks.target import Target, probabilities
from pipeline.text.word_pieces import with_each_word_replaced

# Each word of a long text makes another text, so batches are counted in variants and not in inputs.
AT_ONCE = 1024
Texts = Sequence[str]
Logits = Callable[[Texts, Texts | None], Floats]


class Word(NamedTuple):
    """A word of an input.

    Attributes:
        row: the number of the input.
        side: the number of its sentence, 0 or 1.
        place: its position in the sentence, from 0.
        text: the word.
    """

    row: int
    side: int
    place: int
    text: str


def without_each_word(ask: Logits, sentences1: Texts, sentences2: Texts | None) -> tuple[list[Word], Floats]:
    """Returns all words of the inputs, and a student's logits of each input without each word.

    Args:
        ask: returns a student's logits [N, C] of texts. See `Predictor.logits`.
        sentences1: the first sentences.
        sentences2: the second sentences, or None.

    Returns: The words by input, sentence and place, and logits_WC, float32.
    """
    cases = _cases(sentences1, sentences2)
    words: list[Word] = []
    # An empty call gives the right number of columns even if no input has a word.
    logits = [ask([], None if sentences2 is None else [])]
    while some := list(islice(cases, AT_ONCE)):
        words += [word for word, _, _ in some]
        second = None if sentences2 is None else [text for _, _, text in some]
        logits.append(ask([text for _, text, _ in some], second))
    return words, np.concatenate(logits)


def _cases(sentences1: Texts, sentences2: Texts | None) -> Iterator[tuple[Word, str, str]]:
    """Yields each word with the sentences of its input without it. The second one is empty for single sentences."""
    seconds = repeat("") if sentences2 is None else sentences2
    # `enumerate` counts rows from 0, because the index of a pandas Series may start anywhere.
    for row, (first, second) in enumerate(zip(sentences1, seconds, strict=False)):
        for place, (word, text) in enumerate(zip(first.split(), with_each_word_replaced(first), strict=True)):
            yield Word(row, 0, place, word), text, second
        for place, (word, text) in enumerate(zip(second.split(), with_each_word_replaced(second), strict=True)):
            yield Word(row, 1, place, word), first, text


def effects(target: Target, logits_NC: Floats, words: Sequence[Word], logits_WC: Floats) -> list[list[dict[str, Any]]]:
    """Returns the effects of the words of each input.

    Args:
        target: what the logits mean.
        logits_NC: the logits of the unchanged inputs.
        words: the words of all inputs.
        logits_WC: the logits without each word.

    Returns: A dict per word: ``word``, ``sentence`` (1 or 2), ``effect`` (the probability of each label, or the
        ``score``, less the value without the word) and for labels ``entropy`` (the increase without the word, in nats).
    """
    row_W = np.array([word.row for word in words], dtype=np.int64)
    names = target.names if target.has_labels else ("score",)
    effect_WC = target.answers(logits_NC)[row_W] - target.answers(logits_WC)
    # A rising entropy means that the answer rested on the word, also where the label does not change.
    entropy_W = entropies(target, logits_WC) - entropies(target, logits_NC)[row_W] if target.has_labels else None
    told: list[list[dict[str, Any]]] = [[] for _ in logits_NC]
    for number, word in enumerate(words):
        effect = dict(zip(names, effect_WC[number].tolist(), strict=True))
        entropy = {} if entropy_W is None else {"entropy": float(entropy_W[number])}
        told[word.row].append({"word": word.text, "sentence": word.side + 1, "effect": effect, **entropy})
    return told


def entropies(target: Target, logits_NC: Floats) -> Floats64:
    """Returns the entropy of predictions with labels [N], in nats.

    For a multi-label task, returns the sum over its labels.
    """
    # `entr` defines 0 log 0 as 0, where numpy would return NaN.
    from scipy.special import entr

    p_NC = probabilities(target, logits_NC).astype(np.float64)
    of_not_N = entr(1 - p_NC).sum(axis=1) if target.has_label_lists else 0
    return np.asarray(entr(p_NC).sum(axis=1) + of_not_N)
