"""Pairs of sentences that nobody has paired: neighbours in a text, or similar ones. Shapes: N sentences, W words."""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from pipeline.arrays import Ints
from pipeline.seeded import hashed
from teacher.unlabelled.words import letters, spelt_alike, words_of

MOST_SENTENCES = 100  # with a word that still tells something
SENTENCES_AT_ONCE = 4096
WEIGHT_UNIT = 1024  # weights are whole numbers, whose sums do not depend on the machine

Pairs = tuple[list[str], list[str]]


def neighbours(documents: Sequence[Sequence[str]]) -> Pairs:
    """Each sentence of a document with the next one."""
    pairs = [pair for sentences in documents for pair in itertools.pairwise(sentences)]
    return [first for first, _ in pairs], [second for _, second in pairs]


def similar(sentences: Sequence[str], seed: int) -> Pairs:
    """Each sentence with the one that is most like it, every pair once; which of them comes first is drawn.

    Alike is what has words in common that at most so many of the sentences have: twice the weight of those words by the
    weight of all words of both (Dice's coefficient), a word's weight being the logarithm of one in how many sentences
    has it. Sentences that read the same count as one; those without such a word are in no pair.

    Args:
        sentences: the sentences.
        seed: of the order in a pair.
    """
    texts = spelt_alike(pa.array(sentences, pa.string()))
    encoded = letters(texts).dictionary_encode().indices.to_numpy()
    place_N = np.sort(np.unique(encoded, return_index=True)[1])
    first_P, second_P = _most_similar(texts.take(pa.array(place_N)))
    swapped_P = (hashed(seed, first_P, second_P) & np.uint64(1)).astype(bool)
    one_P, other_P = np.where(swapped_P, second_P, first_P), np.where(swapped_P, first_P, second_P)
    return [sentences[k] for k in place_N[one_P]], [sentences[k] for k in place_N[other_P]]


def _most_similar(texts: pa.Array) -> tuple[Ints, Ints]:
    """The pairs of different texts, as their numbers, the lower one first, ordered."""
    words = words_of(texts)
    encoded = words.flat.dictionary_encode()
    key = np.unique(np.stack([words.text_W, encoded.indices.to_numpy()]), axis=1)  # a word counts once in a text
    text_T, word_T = key
    found_V = np.bincount(word_T, minlength=len(encoded.dictionary))
    weight_V = np.round(WEIGHT_UNIT * np.log(len(texts) / found_V.clip(min=1))).astype(np.int64)
    total_N = np.bincount(text_T, weights=weight_V[word_T], minlength=len(texts)).astype(np.int64)
    tells_T = (found_V[word_T] > 1) & (found_V[word_T] <= MOST_SENTENCES)
    place = (text_T[tells_T], word_T[tells_T])
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
        order = np.lexsort((column_S, -alike_S, row_S))  # of equals the first in the text
        row_S, column_S = row_S[order], column_S[order]
        best = np.flatnonzero(np.diff(row_S, prepend=-1))
        pairs.append(np.sort(np.stack([row_S[best], column_S[best]]), axis=0))
    first_P, second_P = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return first_P, second_P
