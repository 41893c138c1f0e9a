"""A tokenizer with made-up words, for students that have none: of BERT's kind, and as large as its."""

from itertools import chain, islice, product

from tokenizers import Tokenizer

from pipeline.text.words import SPECIAL_TOKENS, wordpiece

SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")


def made_up_tokenizer(size: int) -> Tokenizer:
    """A WordPiece tokenizer that knows so many tokens; its words have two syllables or three."""
    words = chain(product(SYLLABLES, repeat=2), product(SYLLABLES, repeat=3))
    return wordpiece(islice(chain(".", ("".join(word) for word in words)), size - len(SPECIAL_TOKENS)))
