"""Compiled WordPiece against the library: the same ids for every tokenizer and every text, or the library itself."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from pipeline.errors import DataError, IntegrityError
from pipeline.text.text_to_ids import SENTENCES_AT_ONCE, TextReader
from pipeline.text.tokenizer import tokenize, wordpiece
from pipeline.text.wordpiece.compiled_wordpiece import BYTES_PER_THREAD, is_compatible, library
from tests.helpers.messages import naming
from tests.helpers.tokenizers import TOKENS, VARIANTS, bert, expected, texts, with_added

compiled = pytest.mark.skipif(library() is None, reason="the compiled code was not built")


READERS = {name: TextReader.of(make()) for name, make in VARIANTS.items()}
LIBRARY = {name: make() for name, make in VARIANTS.items()}


def actual(reader: TextReader, first: list[str], second: list[str] | None, length: int | None) -> list[list[list[int]]]:
    return [[part[n].tolist() for n in range(len(part))] for part in reader.read(first, second, length)]


@compiled
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_compiled(name: str) -> None:
    assert READERS[name].wordpiece is not None


@settings(max_examples=400)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    rows=st.lists(st.tuples(texts, texts), max_size=4),
    pair=st.booleans(),
    length=st.integers(0, 30),
)
def test_the_same_ids_as_the_library(name: str, rows: list[tuple[str, str]], pair: bool, length: int) -> None:
    first, second = [a for a, _ in rows], [b for _, b in rows] if pair else None
    assert actual(READERS[name], first, second, length) == expected(LIBRARY[name], first, second, length)
    assert READERS[name].tokenize(first, second, length) == tokenize(LIBRARY[name], first, second, length)


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(VARIANTS)), sentences=st.lists(texts, max_size=4))
def test_whole_sentences_have_the_librarys_ids(name: str, sentences: list[str]) -> None:
    LIBRARY[name].no_truncation()
    encodings = LIBRARY[name].encode_batch(sentences, add_special_tokens=False)
    for reader in (READERS[name], TextReader(VARIANTS[name](), None)):
        reader.tokenize(["the there a b"], None, 3)  # which cuts
        assert actual(reader, sentences, None, None) == [[encoding.ids for encoding in encodings]]
        reader.tokenize(["the there a b"], None, 3)
        seen = [(encoding.ids, encoding.offsets) for encoding in reader.encode(sentences)]
        assert seen == [(encoding.ids, encoding.offsets) for encoding in encodings]


@pytest.mark.parametrize("bad", ["a\ud800", 3, None, b"a"])
def test_what_is_no_text_is_refused_however_it_is_read(bad: Any) -> None:
    row = naming("sentence 1", repr(bad))
    for reader in (READERS["uncased"], TextReader(bert(), None)):
        with pytest.raises(DataError, match=row):
            reader.read(["a", bad], None, None)
        with pytest.raises(IntegrityError, match="tokenizer"):
            reader.encode(["a", bad])


def ids(*pieces: str) -> list[int]:
    return [2 * TOKENS.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        (" \t\r\n", []),
        ("THEREAB", ["there", "##ab"]),
        ("thereThe", ["there", "##the"]),
        ("the!there", ["the", "!", "there"]),
        ("é É e\u0301", ["[UNK]", "[UNK]", "[UNK]"]),  # without its accent it is a letter that is not known
        ("the\x00re the\x7fre", ["there", "there"]),
        ("the\u00adre“", ["there", "“"]),
        ("a中b", ["a", "中", "b"]),
        ("x", ["[UNK]"]),
        ("ax", ["[UNK]"]),
        ("a" * 100, ["a", *["##a"] * 99]),
        ("a" * 101, ["[UNK]"]),
        ("a[MASK]b", ["a", "[MASK]", "b"]),
        ("[mask]", ["[", "[UNK]", "]"]),
    ],
)
def test_by_hand(text: str, pieces: list[str]) -> None:
    assert actual(READERS["uncased"], [text, text], None, 200) == [[ids(*pieces)] * 2]


def test_the_longer_sentence_of_a_pair_is_cut_first() -> None:
    pairs = [("a a a a a a", "b b"), ("a", "b b b b b b"), ("a a a a", "b b b b"), ("中 a a", "b b b 中")]
    first, second = READERS["uncased"].read([a for a, _ in pairs], [b for _, b in pairs], 3 + 5)
    assert [(len(first[n]), len(second[n])) for n in range(4)] == [(3, 2), (1, 4), (2, 3), (2, 3)]


def test_a_token_found_everywhere_breaks_the_library() -> None:
    tokenizer = with_added(AddedToken("\u0301", normalized=True))  # without accents it is the empty text
    reader = TextReader.of(tokenizer)
    assert actual(reader, ["ab the"], None, 9) == expected(tokenizer, ["ab the"], None, 9)
    for read in (tokenize, lambda _, *texts: reader.read(*texts)):
        with pytest.raises(IntegrityError, match="tokenizer"):
            read(tokenizer, ["¡"], None, 9)


def test_as_many_second_sentences_as_first_ones() -> None:
    with pytest.raises(ValueError, match=naming("2 first sentences", "1 second")):
        READERS["uncased"].read(["a", "b"], ["a"], 8)


def test_many_sentences_and_threads(request: pytest.FixtureRequest) -> None:
    sentences = [f"{'the ' * (n % 7)}ab{'中!'[n % 2 :]}" for n in range(SENTENCES_AT_ONCE + 3)]
    assert sum(map(len, sentences[:SENTENCES_AT_ONCE])) > 3 * BYTES_PER_THREAD
    whole = expected(bert(), sentences, None, 20)
    request.addfinalizer(lambda: torch.set_num_threads(1))
    torch.set_num_threads(3)
    reader = TextReader.of(bert())
    assert actual(reader, sentences, None, 20) == whole
    with ThreadPoolExecutor(4) as pool:
        assert all(found == whole for found in pool.map(lambda _: actual(reader, sentences, None, 20), range(8)))


def test_a_tokenizer_of_another_kind_is_left_to_the_library() -> None:
    def changed(**parts: Any) -> Tokenizer:
        tokenizer = bert()
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        return tokenizer

    twice = processors.TemplateProcessing(single="$A $A", pair="$A $B", special_tokens=[])
    tokenizers = [
        changed(normalizer=normalizers.Lowercase()),
        changed(normalizer=normalizers.Sequence([normalizers.BertNormalizer()])),
        changed(pre_tokenizer=pre_tokenizers.Whitespace()),
        changed(post_processor=twice),
        changed(model=WordPiece({"a": 0}, unk_token="[UNK]")),  # noqa: S106
        changed(model=WordPiece({"a": 0, "##\0b": 1}, unk_token="a", continuing_subword_prefix="##\0")),  # noqa: S106
    ]
    for tokenizer in tokenizers:
        reader = TextReader.of(tokenizer)
        assert reader.wordpiece is None
        assert actual(reader, ["a", "a a"], None, 9) == expected(tokenizer, ["a", "a a"], None, 9)


def test_ids_have_31_bits() -> None:
    content = json.loads(bert().to_str())
    assert is_compatible(content)
    content["model"]["vocab"]["b"] = 2**31
    assert not is_compatible(content)


@compiled
def test_more_words_than_it_remembers() -> None:
    words = [f"{a}{b}{c}{d}" for a in "ab" * 8 for b in ("the", "é", "i") for c in range(40) for d in range(40)]
    sentences = [" ".join(words[k::97]) for k in range(97)]
    assert actual(READERS["cased"], sentences, None, 10**5) == expected(bert(lowercase=False), sentences, None, 10**5)


def test_a_real_vocabulary(work: Path) -> None:
    path, sentences = work / "bert" / "tokenizer.json", (work / "sentences.txt").read_text().splitlines()
    reader, reference = TextReader.of(Tokenizer.from_file(str(path))), Tokenizer.from_file(str(path))
    assert actual(reader, sentences, sentences[::-1], 12) == expected(reference, sentences, sentences[::-1], 12)


def test_what_is_no_text_is_named_by_its_row() -> None:
    reader = TextReader.of(wordpiece(["a"]))
    with pytest.raises(DataError, match=naming("sentence 2", "None")):
        reader.read(["a", "a", None], None, 8)  # type: ignore[list-item]
    with pytest.raises(DataError, match=naming("sentence 0", 3.5)):
        reader.read(["a"], [3.5], None)  # type: ignore[list-item]
