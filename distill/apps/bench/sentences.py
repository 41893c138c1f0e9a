"""What is read: the same random sentences for everybody.

The paper's protocol (Galke et al. 2022, Table V) is 256 sentences of 64 tokens; real ones are shorter, and differ.
"""

from dataclasses import dataclass
from itertools import chain, islice, product

import numpy as np
from tokenizers import Tokenizer

from pipeline.arrays import Ints, Ragged
from pipeline.text.tokenizer import SPECIAL_TOKENS, wordpiece

ROWS, PAPER_LENGTH = 256, 64
MEAN_LENGTH, LENGTH_SIGMA, MAX_LENGTH = 13.2, 0.6, 60
MEASURES = {
    "paper": f"from {ROWS} x {PAPER_LENGTH} random ids to vectors",
    "realistic": f"from ids of sentences of {MEAN_LENGTH} tokens in the mean to vectors",
    "text": "from text to predictions",
}
SYLLABLES = tuple(f"{consonant}{vowel}" for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou")


@dataclass(frozen=True)
class Sentences:
    """The sentences that every reader is timed on.

    Attributes:
        paper: ids of `ROWS` sentences of `PAPER_LENGTH` tokens, uniformly random.
        realistic: ids of `ROWS` sentences, their lengths log-normal, their ids uniformly random.
        texts: `ROWS` texts of such lengths, of the tokenizer's words by Zipf's law.
        seconds: the second sentences of pairs; None for single sentences.
    """

    paper: Ragged
    realistic: Ragged
    texts: list[str]
    seconds: list[str] | None


def make_sentences(tokenizer: Tokenizer, vocabulary_size: int, pad_id: int, is_pair: bool) -> Sentences:
    """Makes sentences for a student.

    Args:
        tokenizer: whose words the texts have.
        vocabulary_size: ids are below it.
        pad_id: no sentence holds it.
        is_pair: whether the student reads pairs.
    """
    random = np.random.default_rng(0)
    return Sentences(
        _random_ids(random, np.full(ROWS, PAPER_LENGTH), vocabulary_size, pad_id),
        _random_ids(random, _lengths(random), vocabulary_size, pad_id),
        _texts(random, tokenizer),
        _texts(random, tokenizer) if is_pair else None,
    )


def _lengths(random: np.random.Generator) -> Ints:
    mu = np.log(MEAN_LENGTH) - LENGTH_SIGMA**2 / 2
    return np.clip(random.lognormal(mu, LENGTH_SIGMA, ROWS).astype(np.int64), 1, MAX_LENGTH)


def _random_ids(random: np.random.Generator, lengths_N: Ints, vocabulary_size: int, pad_id: int) -> Ragged:
    flat = random.integers(max(1, vocabulary_size - 1), size=lengths_N.sum())
    flat += flat >= pad_id
    return Ragged(flat, np.concatenate([[0], np.cumsum(lengths_N)]))


def _texts(random: np.random.Generator, tokenizer: Tokenizer) -> list[str]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    words = sorted((token for token in vocabulary if token.isalpha()), key=vocabulary.__getitem__) or ["a"]
    share_W = 1 / np.arange(1, len(words) + 1)
    share_W /= share_W.sum()
    return [" ".join(random.choice(words, count, p=share_W)) + "." for count in _lengths(random)]


def made_up_tokenizer(size: int) -> Tokenizer:
    """A WordPiece tokenizer that knows so many tokens; its words have two syllables or three."""
    words = chain(product(SYLLABLES, repeat=2), product(SYLLABLES, repeat=3))
    return wordpiece(islice(chain(".", ("".join(word) for word in words)), size - len(SPECIAL_TOKENS)))
