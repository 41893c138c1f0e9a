"""Finds near copies of other texts, and pairs of similar sentences, independently of case and punctuation.

A student that is trained on near copies of dev rows would be evaluated on rows it has seen. A near copy has the same
letters and digits, or it shares half of the word trigrams of the shorter text, if that has at least eight words.

Shapes: N texts, D others, K different trigrams of the others, W words.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix

from pipeline.arrays import Hashes, Ints, hashed

BETWEEN_WORDS = r"[^\p{L}\p{M}\p{N}]+"
SHARED = 0.5  # share of the shorter text's trigrams
FEWEST_WORDS = 8
FEWEST_TRIGRAMS = FEWEST_WORDS - 2
TEXTS_AT_ONCE = 8192
Mask = npt.NDArray[np.bool_]
# Words in more sentences are too common to indicate similarity.
MOST_SENTENCES = 100
SENTENCES_AT_ONCE = 4096
# Integer weights, because float sums depend on the order of additions and so on the machine.
WEIGHT_UNIT = 1024

Pairs = tuple[list[str], list[str]]


@dataclass(frozen=True)
class Words:
    """The words of texts end to end.

    Attributes:
        flat: the words [W].
        text_W: the text of each word.
        count_N: the number of words of each text.
    """

    flat: pa.Array
    text_W: Ints
    count_N: Ints


def normalized(texts: pa.Array) -> pa.Array:
    """Returns texts in NFKC and lower case, without punctuation, as words of letters and digits with spaces between."""
    lower = pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC"))
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(lower, BETWEEN_WORDS, " "))


def letters(normal: pa.Array) -> pa.Array:
    """Returns the letters and digits of normalized texts without spaces, because the ends of words vary in spelling."""
    return pc.replace_substring(normal, " ", "")


def words_of(normal: pa.Array) -> Words:
    """Returns the words of normalized texts."""
    lists = pc.split_pattern(normal, " ")
    count_N = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    # Splitting an empty text gives an empty word.
    is_word_W = pc.not_equal(flat, "").to_numpy(zero_copy_only=False)
    text_W = np.repeat(np.arange(len(normal)), count_N)[is_word_W]
    return Words(flat.filter(pa.array(is_word_W)), text_W, np.bincount(text_W, minlength=len(normal)))


def near_copies(texts: pa.Array, others: pa.Array) -> Mask:
    """Returns which normalized texts are near copies of any of the normalized others [N]."""
    is_copy_N: Mask = pc.is_in(letters(texts), letters(others)).to_numpy(zero_copy_only=False)
    # Trigrams with a word that the dev rows do not contain cannot be shared, so their vocabulary suffices.
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
    """Returns which texts share enough trigrams with any of the others [N]."""
    words = words_of(texts)
    key_T, text_T = _trigrams(words, vocabulary)
    place_T = np.searchsorted(key_K, key_T).clip(max=len(key_K) - 1)
    known_T = key_K[place_T] == key_T
    trigrams_NK = _matrix(text_T[known_T], place_T[known_T], (len(texts), len(key_K)))
    # Texts with fewer known trigrams cannot reach the threshold, and skipping them keeps the product small.
    enough_C = np.flatnonzero(trigrams_NK.getnnz(axis=1) >= SHARED * FEWEST_TRIGRAMS)
    shared_CD = (trigrams_NK[enough_C] @ trigrams_DK.T).tocoo()
    shorter = np.minimum((words.count_N - 2)[enough_C][shared_CD.row], size_D[shared_CD.col])
    is_enough = (shorter >= FEWEST_TRIGRAMS) & (shared_CD.data >= SHARED * shorter)
    is_copy_N = np.zeros(len(texts), dtype=bool)
    is_copy_N[enough_C[shared_CD.row[is_enough]]] = True
    return is_copy_N


def _trigrams(words: Words, vocabulary: pa.Array) -> tuple[Hashes, Ints]:
    """Returns the trigrams of known words as hashes, and the text of each."""
    word_W = pc.fill_null(pc.index_in(words.flat, vocabulary), -1).to_numpy(zero_copy_only=False)
    first, second, third = word_W[:-2], word_W[1:-1], word_W[2:]
    is_one = (words.text_W[:-2] == words.text_W[2:]) & (first >= 0) & (second >= 0) & (third >= 0)
    return hashed(first[is_one], second[is_one], third[is_one]), words.text_W[:-2][is_one]


def _matrix(row_T: Ints, column_T: Ints, shape: tuple[int, int]) -> csr_matrix:
    """Returns a matrix with ones where a text has a trigram."""
    matrix = csr_matrix((np.ones(len(row_T), dtype=np.int32), (row_T, column_T)), shape=shape)
    # csr_matrix adds up duplicates, but a trigram that occurs twice counts once.
    matrix.data[:] = 1
    return matrix


def neighbours(documents: Sequence[Sequence[str]]) -> Pairs:
    """Yields each sentence of a document with the next one."""
    pairs = [pair for sentences in documents for pair in itertools.pairwise(sentences)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def similar(sentences: Sequence[str], seed: int) -> Pairs:
    """Returns each sentence with the most similar one, and every pair once, in random order within the pair.

    The similarity is Dice's coefficient with weights: twice the weight of common words by the weight of all words of
    both. The weight of a word is the logarithm of its inverse document frequency, and very frequent words are ignored.
    Equal sentences count as one. Sentences without such words are in no pair.

    Args:
        sentences: the sentences.
        seed: the seed of the order in a pair.
    """
    texts = normalized(pa.array(sentences, pa.string()))
    encoded = letters(texts).dictionary_encode().indices.to_numpy()
    place_N = np.sort(np.unique(encoded, return_index=True)[1])
    first_P, second_P = _most_similar(texts.take(pa.array(place_N)))
    swapped_P = (hashed(seed, first_P, second_P) & np.uint64(1)).astype(bool)
    one_P, other_P = np.where(swapped_P, second_P, first_P), np.where(swapped_P, first_P, second_P)
    return [sentences[k] for k in place_N[one_P]], [sentences[k] for k in place_N[other_P]]


def _most_similar(texts: pa.Array) -> tuple[Ints, Ints]:
    """Returns the sorted pairs of different texts, as their numbers with the lower one first."""
    words = words_of(texts)
    encoded = words.flat.dictionary_encode()
    key = np.unique(np.stack([words.text_W, encoded.indices.to_numpy()]), axis=1)  # each word counts once per text
    text_T, word_T = key
    found_V = np.bincount(word_T, minlength=len(encoded.dictionary))
    weight_V = np.round(WEIGHT_UNIT * np.log(len(texts) / found_V.clip(min=1))).astype(np.int64)
    total_N = np.bincount(text_T, weights=weight_V[word_T], minlength=len(texts)).astype(np.int64)
    counts_T = (found_V[word_T] > 1) & (found_V[word_T] <= MOST_SENTENCES)
    place = (text_T[counts_T], word_T[counts_T])
    shape = (len(texts), len(found_V))
    has_NV = csr_matrix((np.ones(len(place[0]), dtype=np.int64), place), shape=shape)
    weighted_NV = csr_matrix((weight_V[place[1]], place), shape=shape)
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for start in range(0, len(texts), SENTENCES_AT_ONCE):
        shared = (weighted_NV[start : start + SENTENCES_AT_ONCE] @ has_NV.T).tocoo()
        row_S, column_S = shared.row.astype(np.int64) + start, shared.col.astype(np.int64)
        other = (row_S != column_S) & (shared.data > 0)
        row_S, column_S, shared_S = row_S[other], column_S[other], shared.data[other]
        alike_S = 2 * shared_S / (total_N[row_S] + total_N[column_S])
        order = np.lexsort((column_S, -alike_S, row_S))  # among equally similar ones the first sentence wins
        row_S, column_S = row_S[order], column_S[order]
        best = np.flatnonzero(np.diff(row_S, prepend=-1))
        pairs.append(np.sort(np.stack([row_S[best], column_S[best]]), axis=0))
    first_P, second_P = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return first_P, second_P
