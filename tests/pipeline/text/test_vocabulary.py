"""Vocabularies without a teacher: BERT's, and those learned from texts of any script."""

import subprocess
import sys

import pytest

from pipeline.text.tokenizer import bert_uncased
from pipeline.text.vocabulary import learned_vocabulary, share_of_whole_words, usual_vocabulary
from pipeline.text.wordpiece.compiled_wordpiece import library

TEXTS = ["Die Größe der Straße", "die STRASSE, die größte", "天气很好", "مرحبا بالعالم", "नमस्ते दुनिया", "good 😀 goods"]


def test_the_share_of_whole_words() -> None:
    assert share_of_whole_words(bert_uncased(), ["Hello, unaffable", "world"]) == 0.75
    assert share_of_whole_words(bert_uncased(), []) == 0


def test_english_is_read_with_the_shipped_vocabulary_and_other_languages_with_a_learned_one() -> None:
    assert usual_vocabulary(["a good film", "a bad film"]).tokenizer.get_vocab() == bert_uncased().get_vocab()
    vocabulary = usual_vocabulary(TEXTS * 3)
    tokenizer, words = vocabulary.tokenizer, vocabulary.words
    assert {"straße", "天"} <= tokenizer.get_vocab().keys()
    assert f"{tokenizer.get_vocab_size():,}" in words


@pytest.mark.parametrize("is_cased", [False, True])
def test_every_text_is_spelled_by_a_vocabulary_that_was_learned_from_it(is_cased: bool) -> None:
    tokenizer = learned_vocabulary(TEXTS, 300, is_cased).tokenizer
    for text in TEXTS:
        tokens = tokenizer.encode(text, add_special_tokens=False).tokens
        spelled = "".join(token.removeprefix("##") for token in tokens)
        assert spelled == (text if is_cased else text.lower()).replace(" ", "")


@pytest.mark.parametrize("odd", ["\uffff", "\U00054044", "\U0010b2a8"])
def test_what_the_engine_does_not_tell_apart_is_no_piece(odd: str) -> None:
    tokens = learned_vocabulary([f"a{odd}b {odd}"] * 3, 200).tokenizer.get_vocab()
    assert not any(odd in token for token in tokens)
    assert {"a", "[UNK]"} <= tokens.keys()


def test_rare_letters_are_left_out_of_a_vocabulary_that_is_too_small_for_them() -> None:
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 300)]
    texts = [" ".join(letters[:20])] * 3 + letters
    tokenizer = learned_vocabulary(texts, 100).tokenizer
    assert tokenizer.get_vocab_size() <= 100
    assert {*letters[:20]} <= tokenizer.get_vocab().keys()


def test_the_same_texts_give_the_same_vocabulary_in_another_process_and_order() -> None:
    # The trainer's tables have random seeds per process, and its threads race.
    program = (
        "from tests.pipeline.text.test_vocabulary import TEXTS\n"
        "from pipeline.text.vocabulary import learned_vocabulary\n"
        "print(learned_vocabulary(TEXTS[::-1], 120).tokenizer.to_str())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == learned_vocabulary(TEXTS, 120).tokenizer.to_str()


@pytest.mark.skipif(library() is None, reason="the compiled WordPiece was not built")
def test_the_compiled_code_reads_it() -> None:
    assert learned_vocabulary(TEXTS, 300).reader.wordpiece is not None
