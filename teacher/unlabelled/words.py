"""Texts as words, however they are spelt. Shapes: N texts, W words."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrays import Ints

BETWEEN_WORDS = r"[^\p{L}\p{M}\p{N}]+"


@dataclass(frozen=True)
class Words:
    """The words of texts end to end.

    Attributes:
        flat: the words [W].
        text_W: the text that each belongs to.
        count_N: how many each text has.
    """

    flat: pa.Array
    text_W: Ints
    count_N: Ints


def spelt_alike(texts: pa.Array) -> pa.Array:
    """Texts in NFKC and lower case, without punctuation, a space between two words: runs of letters and digits."""
    lower = pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC"))
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(lower, BETWEEN_WORDS, " "))


def letters(alike: pa.Array) -> pa.Array:
    """The letters and digits of texts that are spelt alike, as where words end is a matter of spelling, too."""
    return pc.replace_substring(alike, " ", "")


def words_of(alike: pa.Array) -> Words:
    """The words of texts that are spelt alike."""
    lists = pc.split_pattern(alike, " ")
    count_N = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    is_word_W = pc.not_equal(flat, "").to_numpy(zero_copy_only=False)  # of no words, splitting makes an empty one
    text_W = np.repeat(np.arange(len(alike)), count_N)[is_word_W]
    return Words(flat.filter(pa.array(is_word_W)), text_W, np.bincount(text_W, minlength=len(alike)))
