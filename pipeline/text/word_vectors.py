"""Word vectors in text files, as word2vec and GloVe write them. Shapes: W words, D numbers per vector."""

import gzip
import zlib
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from pipeline.arrays import Floats
from pipeline.errors import DataError
from pipeline.files import sha256


def file_sha256(path: Path, flag: str) -> str:
    """Returns the hash of a file of vectors. ``flag`` is the flag with its path.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return sha256(path)
    except OSError as error:
        raise _not_read(path, flag, error) from error


def read_word_vectors(
    path: Path, flag: str, most: int | None = None, wanted: Container[str] | None = None
) -> tuple[list[str], Floats]:
    """Reads the vectors of a GloVe or word2vec text file, gzipped or not, without vectors of only zeros.

    Args:
        path: the file, in which the most frequent words come first.
        flag: the flag with the path, for messages.
        most: maximum number of vectors. Default: all.
        wanted: the words whose vectors are read. Default: all.

    Returns: The words in their order, which may repeat, and vectors_WD, float32.

    Raises:
        DataError: if it cannot be read or contains no such vector, naming the wrong line.
    """
    try:
        # Some editors add a byte order mark, which would become part of the first word.
        encoding = "utf-8-sig"
        with gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding) as file:
            words, rows = _parse(f"{flag} {path}", file, most, wanted)
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise _not_read(path, flag, error) from error
    if not words:
        raise DataError(f"{flag} {path}: contains no vectors" + ("" if wanted is None else " of the required words"))
    return words, np.stack(rows)


def _parse(
    context: str, file: TextIO, most: int | None, wanted: Container[str] | None
) -> tuple[list[str], list[Floats]]:
    words: list[str] = []
    rows: list[Floats] = []
    width = 0
    for number, line in enumerate(file, start=1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            # word2vec's first line holds the number of words and their size. GloVe has no such line.
            continue
        width = width or len(fields) - 1
        # Some words in GloVe's files contain spaces, so numbers are counted from the end of the line.
        word = " ".join(fields[:-width]) if width else ""
        # Unwanted words are skipped before their numbers are parsed, which is most of the work.
        if wanted is not None and 0 < width < len(fields) and word not in wanted:
            continue
        values = _numbers(fields[-width:]) if 0 < width < len(fields) else None
        if values is None:
            expected = f"a word and {width or 'some'} finite numbers, separated by single spaces"
            raise DataError(f"{context}: line {number}: not {expected}")
        # A vector of zeros has no direction and would count as a known word.
        if values.any():
            words.append(word)
            rows.append(values)
        if len(words) == most:
            break
    return words, rows


def _numbers(fields: Sequence[str]) -> Floats | None:
    try:
        # A number too large for float32 becomes infinite, which is refused below with its line.
        with np.errstate(over="ignore"):
            values = np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _not_read(path: Path, flag: str, error: Exception) -> DataError:
    return DataError(f"{flag} {path}: cannot be read: {error}")
