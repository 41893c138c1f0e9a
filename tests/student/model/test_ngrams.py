"""The n-gram part of a student: what it counts, by a plain loop over words, and the logits that follow."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrays import Ragged
from student.model.ngrams import BASE, LEAST_ROWS, MIX, MODULUS, MOST_ROWS, Ngrams, NgramSizes, num_rows_for, spelled
from student.model.student import Student
from tests.helpers.tokenizers import TOKENS, bert
from tests.helpers.toy_students import add_ngrams, student

Row = dict[int, int]
SPECIAL = ("[MASK]", "[UNK]")  # spell nothing
SHAPE = {"vocabulary_size": 2 * len(TOKENS), "embedding": "cbow", "vector_size": 4}
texts = st.lists(st.sampled_from(["a", "ab", "the", "é", "中", "##b", "film", "[MASK]"]), max_size=8).map(" ".join)


def part_of(is_pair: bool = False) -> Ngrams:
    made = student(**SHAPE, is_pair=is_pair)
    add_ngrams(made, bert().to_str())
    assert made.ngrams is not None
    return made.ngrams


def row_of(ngram: bytes, num_rows: int = LEAST_ROWS) -> int:
    total = sum((byte + 1) * pow(BASE, place, MODULUS) for place, byte in enumerate(ngram))
    return (total * MIX % MODULUS) >> 64 - (num_rows.bit_length() - 1)


def weights_of(text: str) -> Row:
    """The weight of each row by a plain loop over the words that the tokens of a text spell."""
    tokens = [token for token in bert().encode(text, add_special_tokens=False).tokens if token not in SPECIAL]
    words = " ".join(tokens).replace(" ##", "").split()
    found: Row = {}
    for word in words:
        # n-grams are of bytes, so that characters of several bytes are cut
        spaced = f" {word} ".encode()
        for size in (2, 3, 4):
            for begin in range(len(spaced) - size + 1):
                found[row_of(spaced[begin : begin + size])] = 1
    for ngram in (*words, *map(" ".join, itertools.pairwise(words))):
        found[row_of(f" {ngram} ".encode())] = 3
    return found


def ids_of(some: Sequence[str]) -> Ragged:
    return Ragged.of([bert().encode(text, add_special_tokens=False).ids for text in some])


@given(st.lists(texts, min_size=1, max_size=4))
def test_words_pairs_and_bytes_are_counted(some: list[str]) -> None:
    counts = part_of().count(ids_of(some))
    for number, text in enumerate(some):
        row = counts.weighted_NF[number]
        assert dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) == weights_of(text)
        assert counts.length_N[number] == pytest.approx(max(1, sum(weights_of(text).values())) ** 0.5)


@given(texts, texts)
def test_pairs_are_counted_in_three_groups(first: str, second: str) -> None:
    counts = part_of(is_pair=True).count(ids_of([first, second]))
    of_first, of_second = weights_of(first), weights_of(second)
    both = {row: min(weight, of_second[row]) for row, weight in of_first.items() if row in of_second}
    expected = np.zeros(3 * LEAST_ROWS)
    for group, one in enumerate((of_first, of_second)):
        for row, weight in one.items():
            expected[group * LEAST_ROWS + row] = weight - both.get(row, 0)
    for row, weight in both.items():
        expected[2 * LEAST_ROWS + row] = weight
    np.testing.assert_array_equal(counts.weighted_NF.toarray()[0], expected)
    sizes = [sum(one.values()) for one in (of_first, of_second)]
    assert counts.length_N[0] == pytest.approx(max(1, sum(sizes)) ** 0.5)
    assert counts.shared_N[0] == pytest.approx(sum(both.values()) / max(1, sizes[0] * sizes[1]) ** 0.5)


def test_logits_are_weighted_sums_beside_those_of_the_network() -> None:
    made = student(**SHAPE)
    ids = ids_of(["the film", "a"])
    inputs = torch.from_numpy(ids.flat), torch.from_numpy(ids.offsets)
    network_NC = made.logits(*inputs)
    add_ngrams(made, bert().to_str())
    part = made.ngrams
    assert part is not None
    for number, text in enumerate(("the film", "a")):
        weights = weights_of(text)
        total_C = sum(weight * part.weight_GRC[0, row].double() for row, weight in weights.items())
        own_C = total_C * part.scale_C.double() / sum(weights.values()) ** 0.5 + part.bias_C
        expected_C = 0.5 * network_NC[number].double() + own_C
        torch.testing.assert_close(made.logits(*inputs)[number].double(), expected_C, rtol=1e-5, atol=1e-6)


def test_a_student_keeps_its_ngrams_on_disk(tmp_path: Path) -> None:
    made = student(**SHAPE)
    add_ngrams(made, bert().to_str())
    made.save(tmp_path)
    ids = torch.tensor([[3, 4, 5], [7, 0, 0]])
    torch.testing.assert_close(Student.load(tmp_path)(ids), made(ids), rtol=0, atol=0)


def test_tokens_spell_what_is_between_spaces() -> None:
    spelling_Y, start_V = spelled(bert().to_str(), 2 * len(TOKENS))
    vocabulary = bert().get_vocab()
    spellings = {
        name: bytes(spelling_Y[start_V[number] : start_V[number + 1]].tolist()) for name, number in vocabulary.items()
    }
    assert (spellings["the"], spellings["##a"], spellings["[PAD]"]) == (b" the", b"a", b"")


def test_weights_take_about_a_megabyte() -> None:
    assert [num_rows_for(count) for count in (1, 2, 4, 5, 77, 10_000)] == [MOST_ROWS] * 3 + [2**17, 2**13, LEAST_ROWS]
    assert NgramSizes(num_rows=LEAST_ROWS, num_bytes=0).num_bytes == 0
