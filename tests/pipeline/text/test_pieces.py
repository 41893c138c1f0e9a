"""Words as tokens, and numbers of words on tokens and back."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

from pipeline.arrays import Ragged
from pipeline.text.text_to_ids import TextReader
from pipeline.text.word_pieces import Pieces, read_pieces
from tests.helpers.encoders import write_encoder

SENTENCES = [["Paris", "met", "the", "U.S.", "o'clock"], ["a"], [], ["naïve", "snow", "-", "snowboard"]]
TEXTS = ["Paris met the U.S. at o'clock", "a naive snowboard"]


@pytest.mark.parametrize("family", ["BERT", "XLM-R", "RoBERTa", "DeBERTa-v3"])
def test_words_are_read_as_transformers_reads_them(family: str, tmp_path: Path) -> None:
    write_encoder(family, AutoModel, TEXTS, tmp_path)
    settings = {"add_prefix_space": True} if family == "RoBERTa" else {}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, **settings)
    pieces = read_pieces(TextReader.of(tokenizer.backend_tokenizer), SENTENCES)
    for row, words in enumerate(SENTENCES):
        expected = tokenizer(words, is_split_into_words=True, add_special_tokens=False)
        assert pieces.ids[row].tolist() == expected["input_ids"]
        assert pieces.word_ids[row].tolist() == expected.word_ids()


def test_sentences_are_cut_and_words_lose_their_tokens(tmp_path: Path) -> None:
    write_encoder("BERT", AutoModel, TEXTS, tmp_path)
    reader = TextReader.of(AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer)
    pieces = read_pieces(reader, [["met", "\u200b", "paris", "a"]], 2)
    assert pieces.word_ids.lists() == [[0, 2]]  # what is left out of texts has no token


def test_numbers_go_from_words_to_first_tokens_and_back() -> None:
    pieces = Pieces(Ragged.of([[5, 6, 7], [], [8, 9]]), Ragged.of([[0, 0, 2], [], [0, 1]]))
    assert pieces.is_first_T.tolist() == [True, False, True, True, True]
    by_word = pieces.by_word(np.array([10, 11, 12, 13, 14]), np.array([4, 1, 2]), -7)
    assert by_word.lists() == [[10, -7, 12, -7], [-7], [13, 14]]
    assert pieces.on_first(by_word, -1).tolist() == [10, -1, 12, 13, 14]
