"""The words nearest to a word, by their vectors. Shapes: W words, D numbers a vector, Q queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from pipeline.arrays import Floats
from pipeline.text.word_vectors import read_word_vectors

FLAG = "--word-vectors"
MAX_WORDS = 100_000  # the commonest words come first in these files; TinyBERT reads so many, too
QUERIES_AT_ONCE = 128


@dataclass(frozen=True)
class WordVectors:
    """Words with vectors of length 1.

    Attributes:
        words: the words, by falling frequency.
        vectors_WD: float32.
    """

    words: list[str]
    vectors_WD: Floats

    def neighbours(self, words: Sequence[str], k: int) -> dict[str, list[str]]:
        """The k nearest other words by cosine, nearest first, of each word that has a vector.

        A word is looked up as it is written, then in small letters.
        """
        number = self._number
        numbers = {word: number.get(word, number.get(word.lower(), -1)) for word in dict.fromkeys(words)}
        queries = [(word, n) for word, n in numbers.items() if n >= 0]
        nearest: dict[str, list[str]] = {}
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            batch = queries[start : start + QUERIES_AT_ONCE]
            query_Q = np.array([n for _, n in batch])
            cosine_QW = self.vectors_WD[query_Q] @ self.vectors_WD.T
            cosine_QW[np.arange(len(batch)), query_Q] = -np.inf
            top_QK = torch.topk(torch.from_numpy(cosine_QW), min(k, len(self.words) - 1)).indices.tolist()
            nearest |= {word: [self.words[n] for n in row] for (word, _), row in zip(batch, top_QK, strict=True)}
        return nearest

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: n for n, word in reversed(list(enumerate(self.words)))}  # of a word twice, the first one


def read_vectors(path: Path) -> WordVectors:
    """Reads the first 100,000 vectors of a GloVe or word2vec text file, gzipped or not; those that are 0 are left out.

    Raises:
        DataError: if it cannot be read, naming the line that is wrong.
    """
    words, vectors_WD = read_word_vectors(path, FLAG, MAX_WORDS)
    lengths_W1 = np.linalg.norm(vectors_WD.astype(np.float64), axis=1, keepdims=True)  # float32 could overflow
    return WordVectors(words, (vectors_WD / lengths_W1).astype(np.float32))
