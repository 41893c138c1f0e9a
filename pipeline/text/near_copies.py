"""Near copies: rows that share half of their uncommon phrases, such as a sentence and a part of it.

A model that has seen a near copy of a test row is scored too high, so a group of them is on one side of every split.
A phrase is five consecutive words. Phrases of many texts, such as those of form letters, are common and do not count.

Shapes: N rows, G groups, K different texts, W words, S phrases of texts, P pairs of texts.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from pipeline.arrays import Bools, Hashes, Ints, hashed
from pipeline.text.same_input import input_keys

BETWEEN_WORDS = r"[^\p{L}\p{M}\p{N}]+"
PHRASE_WORDS = 5
SHARED = 0.5  # share of the uncommon phrases of the text that has fewer
# A phrase is common if more texts have it. In SST-2, up to twenty parts of one sentence are rows.
MOST_TEXTS, TEXTS_PER_COPY = 20, 200
# Larger groups are divided, because no small split could have them. A very common text is common in tests, too.
LARGEST_SHARE, LARGEST_GROUP = 0.05, 5
TEXTS_AT_ONCE = 8192


@dataclass(frozen=True)
class Words:
    """The words of texts end to end: their texts by number, and the number of words of each text."""

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


def near_copies(texts: pa.Array, others: pa.Array) -> Bools:
    """Returns which normalized texts are near copies of any of the normalized others [N]."""
    both = pa.concat_arrays([others, texts])
    # The others are first, so theirs are the lowest numbers.
    number_N, distinct = _distinct(both, letters(both))
    num_others = int(number_N[: len(others)].max(initial=-1)) + 1
    is_near_K = np.arange(len(distinct)) < num_others
    is_near_K[_near_pairs(distinct, num_others)[0]] = True
    return is_near_K[number_N[len(others) :]]


def groups_of(rows: pa.Table, divides_copies: bool = True) -> Ints:
    """Returns the number of each row's group of near copies, and of their near copies [N].

    A group of more than a twentieth of the rows is divided into copies of one text.

    Args:
        rows: with the columns ``sentence1`` and ``sentence2``, of texts or of lists of words.
        divides_copies: whether so many copies of one text are divided into rows.
    """
    normal = pc.fill_null(joined(normalized_inputs(rows)), "")
    # Texts without letters and digits, such as emojis, are compared as they are.
    key_N = letters(normal)
    key_N = pc.if_else(pc.equal(key_N, ""), pc.fill_null(input_keys(rows), ""), key_N)
    number_N, distinct = _distinct(normal, key_N)
    pairs = _near_pairs(distinct, len(distinct))
    matrix = csr_matrix((np.ones(len(pairs[0]), dtype=bool), pairs), shape=(len(distinct), len(distinct)))
    group_N: Ints = connected_components(matrix, directed=False)[1].astype(np.int64)[number_N]
    for smaller_N in (number_N, np.arange(len(number_N)))[: 1 + divides_copies]:
        is_large_N = np.bincount(group_N)[group_N] > max(LARGEST_GROUP, LARGEST_SHARE * len(group_N))
        group_N = np.where(is_large_N, 1 + group_N.max(initial=0) + smaller_N, group_N)
    return group_N


def groups_of_values(values: pa.Array) -> Ints:
    """Returns the number of each row's group with the same value [N]. A row without a value is a group of its own."""
    # Any type has a text. NaN, which pandas writes for missing numbers, differs from itself.
    found = [None if one is None or one != one else str(one).strip() or None for one in values.to_pylist()]
    number_N = pc.fill_null(pa.array(found, pa.string()).dictionary_encode().indices, -1).to_numpy().astype(np.int64)
    return np.where(number_N < 0, len(values) + np.arange(len(values)), number_N)


def counted_groups(group_N: Ints) -> str:
    """Returns how many rows are in groups of several, in words."""
    size_G = np.unique(group_N, return_counts=True)[1]
    several_G = size_G[size_G > 1]
    rows = f"{several_G.sum():,} of {len(group_N):,} rows"
    groups = f"{len(several_G):,} group{'' if len(several_G) == 1 else 's'}"
    return f"{rows}, in {groups} of up to {several_G.max(initial=0):,}"


def normalized_inputs(rows: pa.Table) -> list[pa.Array]:
    """Returns the normalized sentences of rows: the first ones, and for pairs the second ones."""
    columns = [rows.column(name).combine_chunks() for name in ("sentence1", "sentence2") if name in rows.column_names]
    # The second column of single sentences is null. The first one is there also without rows.
    texts = [column for k, column in enumerate(columns) if k == 0 or column.null_count < len(column)]
    return [normalized(pc.binary_join(one, " ") if pa.types.is_list(one.type) else one) for one in texts]


def joined(normal: list[pa.Array]) -> pa.Array:
    """Returns the texts of rows. The sentences of pairs are joined."""
    return pc.binary_join_element_wise(*normal, " ")


def _distinct(texts: pa.Array, keys: pa.Array) -> tuple[Ints, pa.Array]:
    """Returns the number of each text among those with different keys [N], and these texts [K]."""
    number_N = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    return number_N, texts.take(pa.array(np.unique(number_N, return_index=True)[1]))


def _near_pairs(texts: pa.Array, num_others: int) -> tuple[Ints, Ints]:
    """Returns the pairs of near copies among different texts [P], the second of which are of the first so many."""
    phrase_S, text_S = _phrases(words_of(texts))
    key, column_S = np.unique(phrase_S, return_inverse=True)
    has_KS = csr_matrix((np.ones(len(text_S), dtype=np.int32), (text_S, column_S)), shape=(len(texts), len(key)))
    has_KS.sum_duplicates()
    has_KS.data[:] = 1  # a phrase that occurs twice in a text counts once
    found_S = has_KS.getnnz(axis=0)
    most = np.clip(len(texts) // TEXTS_PER_COPY, 2, MOST_TEXTS)
    uncommon_K = has_KS[:, found_S <= most].getnnz(axis=1)
    shared_KS = has_KS[:, (found_S > 1) & (found_S <= most)]
    others_SK = shared_KS[:num_others].T.tocsr()
    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        count = (shared_KS[start : start + TEXTS_AT_ONCE] @ others_SK).tocoo()
        first, second = count.row.astype(np.int64) + start, count.col.astype(np.int64)
        is_near = count.data >= SHARED * np.minimum(uncommon_K[first], uncommon_K[second])
        pairs.append(np.stack([first, second])[:, is_near])
    first_P, second_P = np.concatenate(pairs, axis=1)
    return first_P, second_P


def _phrases(words: Words) -> tuple[Hashes, Ints]:
    """Returns the phrases of texts as hashes, and the text of each [S]."""
    word_W = words.flat.dictionary_encode().indices.to_numpy()
    count = max(0, len(word_W) - PHRASE_WORDS + 1)
    is_one = words.text_W[:count] == words.text_W[len(word_W) - count :]
    return hashed(*(word_W[k : k + count][is_one] for k in range(PHRASE_WORDS))), words.text_W[:count][is_one]
