"""Finds the words of a text that may be replaced, and replaces them."""

import re
from collections.abc import Iterable
from typing import NamedTuple

Span = tuple[int, int]  # start and stop (exclusive) in characters
MASK = "[MASK]"  # the text of a masked word

LETTERS = re.compile(r"[A-Za-z]+")
# Contractions that must stay whole, also in tokenized text ("don't", "do n't", "doesn 't", "o'clock"), and the endings
# of others ("it's", "we 'll", "dog's"). The first part of the latter is a stop word or, in a possessive, any word.
CONTRACTION = re.compile(
    r"(?<!\w)\w*(?: ?n)? ?['\u2019]t\b|(?<!\w)\w+['\u2019](?!s\b)\w+|['\u2019](?:s|re|ve|ll|d|m)\b", re.IGNORECASE
)
# The usual English stop words. Above all, negations are never replaced, because that would change the label.
_STOP_WORDS = """
a about above after again against all am an and any are as at be because been before being below between both but by
can cannot could did do does doing down during each few for from further had has have having he her here hers
herself him himself his how i if in into is it its itself let me more most my myself no nor not of off on once only
or other ought our ours ourselves out over own same she should so some such than that the their theirs them
themselves then there these they this those through to too under until up very was we were what when where which
while who whom why with would you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


class Edited(NamedTuple):
    """A sentence in which words were replaced.

    Attributes:
        text: its new text.
        kinds: the kinds of changes. Empty without changes.
        changed: number of changed words.
        words: number of its original words.
    """

    text: str
    kinds: frozenset[str]
    changed: int
    words: int


def replaceable(text: str, spans: Iterable[Span]) -> set[Span]:
    """Returns the words of a text with only letters a to z, without stop words and parts of contractions."""
    in_contractions = {place for match in CONTRACTION.finditer(text) for place in range(*match.span())}
    words = ((span, text[slice(*span)]) for span in spans if span[0] not in in_contractions)
    # Names with digits or accents have no sensible substitutes in a masked LM's vocabulary.
    return {span for span, word in words if LETTERS.fullmatch(word) and word.lower() not in STOP_WORDS}


def spliced(text: str, replacements: Iterable[tuple[Span, str]]) -> str:
    """Returns the text with other words at some positions, and with everything between them unchanged.

    Args:
        text: the text.
        replacements: places and new words, in order, not overlapping.
    """
    parts, end = [], 0
    for (start, stop), word in replacements:
        parts += [text[end:start], word]
        end = stop
    return "".join([*parts, text[end:]])


def in_case_of(word: str, other: str) -> str:
    """Returns the word in the case of another one: Title case, CAPITALS, or unchanged."""
    if len(other) > 1 and other.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if other[:1].isupper() else word
