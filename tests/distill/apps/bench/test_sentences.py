import numpy as np
import pytest

from distill.apps.bench.readers import (
    DOCUMENT_BYTES,
    MAX_LENGTH,
    MEAN_LENGTH,
    PAPER_LENGTH,
    ROWS,
    Sentences,
    made_up_tokenizer,
    make_sentences,
)
from pipeline.arrays import Ragged
from pipeline.text.tokenizer import SPECIAL_TOKENS

VOCABULARY = 30522
TOKENIZER = made_up_tokenizer(VOCABULARY)


@pytest.fixture(scope="module")
def made() -> Sentences:
    return make_sentences(TOKENIZER, VOCABULARY, pad_id=0, is_pair=True)


def test_the_paper_reads_256_times_64_uniform_ids(made: Sentences) -> None:
    assert made.paper.lengths.tolist() == [PAPER_LENGTH] * ROWS
    fifths = np.histogram(made.paper.flat, bins=5, range=(0, VOCABULARY))[0]
    np.testing.assert_allclose(fifths, ROWS * PAPER_LENGTH / 5, rtol=0.1)


def test_realistic_lengths_are_short_on_average_and_differ(made: Sentences) -> None:
    lengths = made.realistic.lengths
    assert len(lengths) == ROWS
    assert lengths.min() >= 1
    assert lengths.max() <= MAX_LENGTH
    assert lengths.mean() == pytest.approx(MEAN_LENGTH, rel=0.1)
    assert lengths.std() > 4


@pytest.mark.parametrize("pad_id", [0, 2, 4])
def test_every_id_but_the_padding_occurs(pad_id: int) -> None:
    sentences = make_sentences(TOKENIZER, 5, pad_id, is_pair=False)
    for ids in (sentences.paper, sentences.realistic):
        assert set(ids.flat.tolist()) == set(range(5)) - {pad_id}


def test_texts_are_of_known_words_as_many_as_the_lengths_say(made: Sentences) -> None:
    assert made.text.second is not None
    both = []
    for texts in (made.text.first, made.text.second):
        encodings = TOKENIZER.encode_batch(texts, add_special_tokens=False)
        both.append(Ragged.of([encoding.ids for encoding in encodings]).lengths)
        assert both[-1].mean() - 1 == pytest.approx(MEAN_LENGTH, rel=0.1)  # the full stop
        assert all("[UNK]" not in encoding.tokens for encoding in encodings)
    assert made.text.first != made.text.second
    np.testing.assert_array_equal(made.text.num_tokens, both[0] + both[1])
    assert made.text.num_bytes == sum(len(a + b) for a, b in zip(made.text.first, made.text.second, strict=True)) / ROWS


def test_documents_are_two_pages_of_different_words(made: Sentences) -> None:
    assert made.documents.second is not None
    for texts in (made.documents.first, made.documents.second):
        assert {len(text) for text in texts} == {DOCUMENT_BYTES + 1}
        assert len(set(texts)) == ROWS
    assert made.documents.num_tokens.mean() > 2 * 500


def test_frequent_words_come_first(made: Sentences) -> None:
    words = " ".join(made.text.first).replace(".", "").split()
    ranks = np.array([TOKENIZER.token_to_id(word) for word in words]) - len(SPECIAL_TOKENS)
    assert (ranks <= 100).mean() == pytest.approx(np.log(100) / np.log(VOCABULARY), abs=0.08)


def test_everybody_reads_the_same(made: Sentences) -> None:
    again = make_sentences(TOKENIZER, VOCABULARY, pad_id=0, is_pair=True)
    assert (again.text.first, again.documents.first) == (made.text.first, made.documents.first)
    np.testing.assert_array_equal(again.paper.flat, made.paper.flat)


def test_a_tokenizer_without_words_still_gives_texts() -> None:
    sentences = make_sentences(made_up_tokenizer(6), 6, pad_id=0, is_pair=False)
    assert set("".join(sentences.text.first)) <= set("a. ")


def test_the_made_up_tokenizer_is_like_berts() -> None:
    assert TOKENIZER.get_vocab_size() == VOCABULARY
    assert TOKENIZER.encode("BABA", "bebe").tokens == ["[CLS]", "baba", "[SEP]", "bebe", "[SEP]"]
