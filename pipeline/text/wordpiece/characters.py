"""What a tokenizer makes of each character, found out by asking it.

BERT's normalizer and splitting into words treat each character for itself: it becomes part of a word (a small letter, a
letter without its accent, nothing), a space, or a word of its own. Only characters that combine with their neighbours
are otherwise: Unicode puts the marks after a letter in order before BERT removes them. Sentences with such characters,
or with one beyond the table, are left to `tokenizers`.
"""

import unicodedata
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

NUM_CHARACTERS = 0x3000  # those of alphabets, punctuation and symbols; before the Chinese ones and emoji
IN_WORD, SPACE, WORD_OF_ITS_OWN, UNKNOWN = range(4)
UNKNOWN_ENTRY = (UNKNOWN, 0, 0, b"")
CHARACTER = np.dtype([("kind", "u1"), ("characters", "u1"), ("bytes", "u1"), ("text", "S5")])
BETWEEN = "0"  # a digit is itself to every normalizer of BERT, and in no other character's decomposition
Characters = npt.NDArray[Any]


def character_table(tokenizer: Tokenizer, firsts: Collection[str] = ()) -> Characters | None:
    """Asks a tokenizer of BERT's kind about the first `NUM_CHARACTERS` characters.

    Args:
        tokenizer: its normalizer and pre-tokenizer are used.
        firsts: normal characters without which the text holds nothing but words; what becomes one is unknown, and what
            becomes anything if one is empty.

    Returns:
        An array of `CHARACTER`, or None if the answers are not one for each.
    """
    decisive = Tokenizer(WordPiece())
    decisive.normalizer, decisive.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    known = _known(decisive.to_str())
    if known is None or not firsts:
        return known and known[0]
    table = known[0].copy()
    for character, answer in known[1].items():
        if any(first in answer for first in firsts):
            table[ord(character)] = UNKNOWN_ENTRY
    return table


@lru_cache(maxsize=16)  # to ask takes a hundred times as long as all else that making a reader does
def _known(tokenizer_json: str) -> tuple[Characters, dict[str, str]] | None:
    """The table of a normalizer and a pre-tokenizer, and the answers; None if they are not one for each character."""
    asked = [chr(code) for code in range(NUM_CHARACTERS) if _is_independent(chr(code))]
    answered = answers(Tokenizer.from_str(tokenizer_json), asked)
    if len(answered) != len(asked):
        return None
    table = np.zeros(NUM_CHARACTERS, CHARACTER)
    table["kind"] = UNKNOWN
    for character, answer in zip(asked, answered, strict=True):
        table[ord(character)] = _entry(character, answer)
    table.flags.writeable = False  # it is everybody's
    return table, dict(zip(asked, answered, strict=True))


def answers(tokenizer: Tokenizer, asked: Sequence[str]) -> list[str]:
    """What a tokenizer of BERT's kind makes of characters, each between two digits, with a space where words part.

    Where a character is not answered by itself, the answers are not as many as the characters.
    """
    others = [character for character in asked if character != BETWEEN]
    normal = tokenizer.normalizer.normalize_str(BETWEEN + BETWEEN.join(others) + BETWEEN)
    words = " ".join(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    first, *answered, last = words.split(BETWEEN)
    if first or last or len(answered) != len(others):
        return []
    given = iter(answered)
    return [BETWEEN if character == BETWEEN else next(given) for character in asked]


def _is_independent(character: str) -> bool:
    """Whether neighbours cannot matter: not a mark, nor a character that this Python does not know."""
    category = unicodedata.category(character)
    return category[0] != "M" and category not in {"Cn", "Cs"}


def _entry(character: str, answer: str) -> tuple[int, int, int, bytes]:
    """The table's entry, from what stands between two digits."""
    text = answer.strip(" ")
    size = len(text.encode())
    kind = {text: IN_WORD, " ": SPACE, f" {text} ": WORD_OF_ITS_OWN}.get(answer, UNKNOWN)
    # no more ids than bytes of text, whatever the vocabulary: a place for each is all that the compiled code has
    if " " in text or size > CHARACTER["text"].itemsize or len(text) > len(character.encode()):
        kind = UNKNOWN
    return (kind, len(text), size, text.encode()) if kind != UNKNOWN else UNKNOWN_ENTRY
