"""Vectors of pairs of neighbouring tokens: against a dictionary, wherever a student is read."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import IntegrityError
from student.describe import describe_config
from student.encoders.encoder import without_padding
from student.encoders.matrices import BigramSums, MatrixEncoder, matrix_encoder
from student.encoders.specs import BIGRAM_SIZE
from student.export.export import with_small_tables
from student.model.student import Student
from student.vocabulary_pruning import prune, restore
from tests.helpers.messages import naming
from tests.helpers.toy_students import BIGRAMS, PAIRS, fill, padded, pair_student, student, student_config

VOCABULARY = 7

sentences = st.lists(st.lists(st.integers(1, VOCABULARY - 1), max_size=9), min_size=1, max_size=5)


def loud_sums() -> BigramSums:
    torch.manual_seed(0)
    sums = BigramSums(len(PAIRS), 3, VOCABULARY)
    fill(sums)
    return sums


@given(sentences)
def test_they_are_the_sums_of_the_pairs_that_have_a_vector(rows: list[list[int]]) -> None:
    sums = loud_sums()
    vector_of = dict(zip(PAIRS, sums.vectors(), strict=True))
    expected = [sum((vector_of[pair] for pair in pairwise(row) if pair in vector_of), torch.zeros(3)) for row in rows]
    torch.testing.assert_close(sums(*without_padding(padded(rows), 0)), torch.stack(expected))
    torch.testing.assert_close(sums.exported(padded(rows)), torch.stack(expected))


def test_they_start_from_nothing_and_learn() -> None:
    sums = BigramSums(len(PAIRS), 3, VOCABULARY)
    sums.set_pairs(torch.tensor(PAIRS))
    ids_T, starts_S = torch.tensor([2, 1, 2, 6, 6]), torch.tensor([0, 4, 5])
    assert not sums(ids_T, starts_S).any()
    (sums(ids_T, starts_S) * torch.tensor([[1.0], [100]])).sum().backward()
    assert isinstance(sums.table, torch.nn.Embedding)
    assert sums.table.weight.grad is not None
    assert sums.table.weight.grad[:, 0].tolist() == [1, 1, 0, 1, 0]


@given(sentences, st.integers(0, 3))
def test_padding_says_nothing(rows: list[list[int]], more: int) -> None:
    encoder = pair_student().encoder
    wider = torch.nn.functional.pad(padded(rows), (0, more))
    torch.testing.assert_close(encoder(wider), encoder(padded(rows)), rtol=0, atol=0)
    torch.testing.assert_close(encoder.exported(wider, 12)[:, -BIGRAM_SIZE:], encoder(padded(rows))[:, -BIGRAM_SIZE:])


def test_windows_read_the_pairs_that_they_hold() -> None:
    encoder = MatrixEncoder(student_config(**BIGRAMS, matrix_size=0, vector_size=2, window_size=2))
    fill(encoder.bigrams)
    assert encoder.bigrams is not None
    first, second, third = (encoder.bigrams.vectors()[PAIRS.index(pair)] for pair in ((1, 2), (2, 6), (2, 2)))
    found = encoder.reduce(torch.tensor([1, 2, 2, 6, 2, 2, 2]), torch.tensor([0, 5, 7]))[:, -BIGRAM_SIZE:]
    torch.testing.assert_close(found, torch.stack([(first + second) / 3, third]))


def test_a_student_of_the_used_tokens_has_the_same_pairs() -> None:
    whole = pair_student(vocabulary_size=40)
    active = np.array([0, 1, 2, 3, 5, 6, 30])
    small = prune(whole, active).eval()
    rows = [[1, 2, 2, 6, 3, 30], [2, 1, 5]]
    here = [np.searchsorted(active, row).tolist() for row in rows]
    torch.testing.assert_close(small(padded(here)), whole(padded(rows)))
    learned = matrix_encoder(small.encoder).bigrams
    fill(learned)
    assert learned is not None
    learned.set_pairs(torch.from_numpy(np.searchsorted(active, PAIRS)))
    restore(whole, small, active)
    torch.testing.assert_close(whole(padded(rows)), small(padded(here)))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_smaller_tables_say_nearly_the_same(dtype: str) -> None:
    whole = pair_student()
    small = with_small_tables(whole, dtype)  # type: ignore[arg-type]
    rows = padded([[1, 2, 2, 6, 3], [4], []])
    torch.testing.assert_close(small(rows), whole(rows), rtol=0.03, atol=0.03)
    assert not torch.equal(small(rows), whole(rows))


def test_they_are_kept_with_their_pairs(tmp_path: Path) -> None:
    made = pair_student()
    made.save(tmp_path)
    rows = padded([[1, 2, 2, 6, 3], [4]])
    torch.testing.assert_close(Student.load(tmp_path)(rows), made(rows), rtol=0, atol=0)


@pytest.mark.parametrize("pairs", [[(1, 2), (1, 2)], [(2, 1), (1, 2)], [(1, 2), (1, 10)], [(-1, 2), (1, 2)]])
def test_pairs_that_cannot_be_are_refused(tmp_path: Path, pairs: list[tuple[int, int]]) -> None:
    made = student(num_bigrams=2)
    bigrams = matrix_encoder(made.encoder).bigrams
    assert bigrams is not None
    bigrams.pairs_K2.copy_(torch.tensor(pairs))
    made.save(tmp_path)
    with pytest.raises(IntegrityError, match=naming("model.safetensors: ", "pair")):
        Student.load(tmp_path)


def test_they_are_described_and_counted() -> None:
    described = describe_config(student_config(**BIGRAMS))
    assert described["parameters"]["bigrams"] == 5 * BIGRAM_SIZE
    assert "and sums of vectors of 32 for 5 pairs of neighbouring tokens" in described["architecture"]["embedding"]
