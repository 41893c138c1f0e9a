"""Which texts are near copies of others, so that a student that learns from them would be graded on what it has seen.

A near copy has the same letters and digits; or it shares half of the word trigrams of the shorter of the two, if that
has at least eight words. Shapes: N texts, D others, K different trigrams of the others, W words.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix

from pipeline.arrays import Ints
from pipeline.seeded import Hashes, hashed
from teacher.unlabelled.words import Words, letters, words_of

SHARED = 0.5  # of the trigrams of the shorter text
FEWEST_WORDS = 8
FEWEST_TRIGRAMS = FEWEST_WORDS - 2
TEXTS_AT_ONCE = 8192
Mask = npt.NDArray[np.bool_]


def near_copies(texts: pa.Array, others: pa.Array) -> Mask:
    """Which texts are near copies of any of the others [N]; both are spelt alike already (`spelt_alike`)."""
    is_copy_N: Mask = pc.is_in(letters(texts), letters(others)).to_numpy(zero_copy_only=False)
    words = words_of(others)
    vocabulary = words.flat.unique()
    key_T, other_T = _trigrams(words, vocabulary)
    key_K, place_T = np.unique(key_T, return_inverse=True)
    if not len(key_K):
        return is_copy_N
    trigrams_DK = _matrix(other_T, place_T, (len(others), len(key_K)))
    parts = [
        _overlaps(texts.slice(start, TEXTS_AT_ONCE), vocabulary, key_K, trigrams_DK, words.count_N - 2)
        for start in range(0, len(texts), TEXTS_AT_ONCE)
    ]
    is_copy_N |= np.concatenate([np.zeros(0, dtype=bool), *parts])
    return is_copy_N


def _overlaps(texts: pa.Array, vocabulary: pa.Array, key_K: Hashes, trigrams_DK: csr_matrix, size_D: Ints) -> Mask:
    """Which texts share enough trigrams with any of the others [N]."""
    words = words_of(texts)
    key_T, text_T = _trigrams(words, vocabulary)
    place_T = np.searchsorted(key_K, key_T).clip(max=len(key_K) - 1)
    known_T = key_K[place_T] == key_T
    trigrams_NK = _matrix(text_T[known_T], place_T[known_T], (len(texts), len(key_K)))
    enough_C = np.flatnonzero(trigrams_NK.getnnz(axis=1) >= SHARED * FEWEST_TRIGRAMS)  # with fewer none can be one
    shared_CD = (trigrams_NK[enough_C] @ trigrams_DK.T).tocoo()
    shorter = np.minimum((words.count_N - 2)[enough_C][shared_CD.row], size_D[shared_CD.col])
    is_enough = (shorter >= FEWEST_TRIGRAMS) & (shared_CD.data >= SHARED * shorter)
    is_copy_N = np.zeros(len(texts), dtype=bool)
    is_copy_N[enough_C[shared_CD.row[is_enough]]] = True
    return is_copy_N


def _trigrams(words: Words, vocabulary: pa.Array) -> tuple[Hashes, Ints]:
    """The trigrams of known words, as hashes, and the text that each is of."""
    word_W = pc.fill_null(pc.index_in(words.flat, vocabulary), -1).to_numpy(zero_copy_only=False)
    first, second, third = word_W[:-2], word_W[1:-1], word_W[2:]
    is_one = (words.text_W[:-2] == words.text_W[2:]) & (first >= 0) & (second >= 0) & (third >= 0)
    return hashed(first[is_one], second[is_one], third[is_one]), words.text_W[:-2][is_one]


def _matrix(row_T: Ints, column_T: Ints, shape: tuple[int, int]) -> csr_matrix:
    """Ones where a text has a trigram, however often."""
    matrix = csr_matrix((np.ones(len(row_T), dtype=np.int32), (row_T, column_T)), shape=shape)
    matrix.data[:] = 1
    return matrix
