"""Word vectors in text files, and the words nearest to a word. Shapes: W words, D numbers a vector, Q queries."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from pipeline.arrays import Floats
from pipeline.errors import DataError
from pipeline.files import sha256

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


def file_sha256(path: Path) -> str:
    """Hash of a file of vectors.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return sha256(path)
    except OSError as error:
        raise _not_read(path, error) from error


def read_vectors(path: Path) -> WordVectors:
    """Reads the first 100,000 vectors of a GloVe or word2vec text file, gzipped or not; those that are 0 are left out.

    Raises:
        DataError: if it cannot be read, naming the line that is wrong.
    """
    try:
        with _open(path) as file:
            words, rows = _parse(path, file)
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise _not_read(path, error) from error
    if not words:
        raise DataError(f"--word-vectors {path}: holds no vectors")
    lengths = (np.linalg.norm(row.astype(np.float64)) for row in rows)  # float32 could overflow
    return WordVectors(words, np.array([row / n for row, n in zip(rows, lengths, strict=True)], dtype=np.float32))


def _parse(path: Path, file: TextIO) -> tuple[list[str], list[Floats]]:
    words: list[str] = []
    rows: list[Floats] = []
    width = 0
    for number, line in enumerate(file, start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            continue  # word2vec's header
        width = width or len(fields) - 1
        values = _numbers(fields[-width:]) if 0 < width < len(fields) else None
        if values is None:
            expected = f"a word and {width or 'some'} finite numbers, separated by single spaces"
            raise DataError(f"--word-vectors {path}: line {number}: not {expected}")
        if values.any():
            words.append(" ".join(fields[:-width]))  # some words of GloVe's hold spaces
            rows.append(values)
        if len(words) == MAX_WORDS:
            break
    return words, rows


def _numbers(fields: Sequence[str]) -> Floats | None:
    try:
        values = np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _open(path: Path) -> TextIO:
    encoding = "utf-8-sig"
    return gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding)


def _not_read(path: Path, error: Exception) -> DataError:
    return DataError(f"--word-vectors {path}: cannot be read: {error}")
