from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.text.text_to_ids import TextReader
from pipeline.text.wordpiece.compiled_wordpiece import library
from teacher.imported.import_answers import read_tokenizer, tokenizer_of_texts
from tests.helpers.messages import naming

TEXTS = ["The café is open.", "the CAFÉ was, alas, shut", "天气 好"]


def test_words_that_are_there_twice_are_tokens_and_others_their_letters() -> None:
    tokenizer = tokenizer_of_texts(TEXTS)
    assert tokenizer.encode("The Café opens!").tokens == [
        "[CLS]",
        "the",
        "café",
        "o",
        "##p",
        "##e",
        "##n",
        "##s",
        "[UNK]",
        "[SEP]",
    ]
    assert tokenizer.encode("天", "the").tokens == ["[CLS]", "天", "[SEP]", "the", "[SEP]"]


def test_the_same_texts_give_the_same_tokenizer_in_any_order() -> None:
    assert tokenizer_of_texts(reversed(TEXTS)).to_str() == tokenizer_of_texts(TEXTS).to_str()


@pytest.mark.skipif(library() is None, reason="the compiled WordPiece was not built")
def test_the_compiled_code_reads_it() -> None:
    assert TextReader.of(tokenizer_of_texts(TEXTS)).wordpiece is not None


def test_one_is_read_from_a_file_or_a_folder(tmp_path: Path) -> None:
    tokenizer = tokenizer_of_texts(TEXTS)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert read_tokenizer(path).get_vocab() == tokenizer.get_vocab()
    with pytest.raises(ConfigError, match=naming(f"--tokenizer {tmp_path / 'elsewhere'}", "tokenizer.json")):
        read_tokenizer(tmp_path / "elsewhere")
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(ConfigError, match=naming(f"--tokenizer {tmp_path}: ")):
        read_tokenizer(tmp_path)
