"""Words in a text: which may be replaced, and how the text reads with others in their place."""

import re
from collections.abc import Iterable
from typing import NamedTuple

Span = tuple[int, int]  # start and stop (exclusive) in characters

LETTERS = re.compile(r"[a-z]+", re.IGNORECASE)
# Whole contractions, also those of tokenised text ("do n't", "it 's"): their parts are not words.
CONTRACTION = re.compile(r"\w*(?: ?n)?['\u2019]\w+")
# The usual English stop words: articles, pronouns, prepositions, auxiliaries and, above all, negations.
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
        text: what it reads now.
        kinds: what was done to it; empty if nothing was.
        changed: number of words that are others now.
        words: number of its words before.
    """

    text: str
    kinds: frozenset[str]
    changed: int
    words: int


def is_replaceable(text: str, span: Span) -> bool:
    """Whether a word is of letters a to z only and neither a stop word nor part of a contraction."""
    word = text[slice(*span)]
    return (
        LETTERS.fullmatch(word) is not None
        and word.lower() not in STOP_WORDS
        and not any(m.start() <= span[0] < m.end() for m in CONTRACTION.finditer(text))
    )


def spliced(text: str, replacements: Iterable[tuple[Span, str]]) -> str:
    """The text with other words at some places, everything between them left as it was.

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
    """A word written as another is: Title case or CAPITALS."""
    if len(other) > 1 and other.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if other[:1].isupper() else word
