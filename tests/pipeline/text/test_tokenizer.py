from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import AutoTokenizer

from pipeline.errors import IntegrityError
from pipeline.text.tokenizer import (
    bert_uncased,
    load_tokenizer,
    pad_id,
    tokenize,
    tokenizer_sha256,
    vocabulary_size,
)
from student.initial_weights.vectors import pretrained_vocabulary, vocabulary_sha256
from tests.helpers.messages import naming

WORDS = ("the", "food", "was", "great", "although", "unknownword", ".", "anna", "wine")
texts = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)


def letters(pad: str = "[PAD]") -> Tokenizer:
    """Knows a to e as 10 to 14; [CLS] is 1, [SEP] is 2."""
    vocabulary = {pad: 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3} | {letter: 10 + k for k, letter in enumerate("abcde")}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def test_single_sentence() -> None:
    (row,) = tokenize(letters(), ["a b z"], None, 16)
    assert (row.ids, row.type_ids, row.ids1, row.ids2) == ([1, 10, 11, 3, 2], [0] * 5, [10, 11, 3], [])


def test_pair_is_kept_apart() -> None:
    (row,) = tokenize(letters(), ["a b"], ["c"], 16)
    assert (row.ids, row.type_ids) == ([1, 10, 11, 2, 12, 2], [0, 0, 0, 0, 1, 1])
    assert (row.ids1, row.ids2) == ([10, 11], [12])


def test_longest_sentence_is_cut_first() -> None:
    (row,) = tokenize(letters(), ["a a a a a a"], ["b b"], 3 + 5)
    assert (row.ids1, row.ids2) == ([10] * 3, [11] * 2)
    (row,) = tokenize(letters(), ["a b c d"], None, 2 + 3)
    assert row.ids1 == [10, 11, 12]


def test_empty_sentences() -> None:
    single, pair = tokenize(letters(), [""], None, 8)[0], tokenize(letters(), [""], [""], 8)[0]
    assert (single.ids, single.ids1) == ([1, 2], [])
    assert (pair.ids, pair.ids1, pair.ids2) == ([1, 2, 2], [], [])
    assert tokenize(letters(), [], None, 8) == []


def test_earlier_settings_of_the_tokenizer_do_not_matter() -> None:
    tokenizer = letters()
    tokenizer.enable_padding(length=20)
    tokenizer.enable_truncation(3)
    assert tokenize(tokenizer, ["a b c", "a"], None, 16) == tokenize(letters(), ["a b c", "a"], None, 16)


@settings(deadline=None)
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), length=st.integers(5, 40), pair=st.booleans())
def test_teacher_reads_what_transformers_would_give_it(
    work: Path, rows: list[tuple[str, str]], length: int, pair: bool
) -> None:
    first = [a for a, _ in rows]
    second = [b for _, b in rows] if pair else None
    expected = AutoTokenizer.from_pretrained(work / "bert")(first, second, truncation=True, max_length=length)
    ours = tokenize(Tokenizer.from_file(str(work / "bert" / "tokenizer.json")), first, second, length)
    assert [row.ids for row in ours] == expected["input_ids"]
    assert [row.type_ids for row in ours] == expected["token_type_ids"]
    specials = 3 if pair else 2
    assert all(len(row.ids1) + len(row.ids2) + specials == len(row.ids) <= length for row in ours)


def test_hash_knows_the_ids_but_not_truncation_or_padding() -> None:
    tokenizer, other = letters(), letters("<pad>")
    before = tokenizer_sha256(tokenizer.to_str())
    tokenize(tokenizer, ["a"], None, 7)
    tokenizer.enable_padding(length=9)
    assert tokenizer_sha256(tokenizer.to_str()) == before
    assert tokenizer_sha256(tokenizer.to_str(pretty=True)) == before
    assert tokenizer_sha256(other.to_str()) != before


def test_another_tokenizer_than_expected_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(letters().to_str())
    assert load_tokenizer(path, tokenizer_sha256(letters().to_str())).get_vocab() == letters().get_vocab()
    with pytest.raises(IntegrityError, match=r"tokenizer\.json: "):
        load_tokenizer(path, tokenizer_sha256(letters("<pad>").to_str()))


def test_padding_and_size() -> None:
    assert (pad_id(letters()), pad_id(letters("<pad>")), vocabulary_size(letters())) == (0, 0, 15)
    assert pad_id(letters("nothing")) == 15


def test_unreadable_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for name in ("torn.json", "list.json", "gone.json"):
        with pytest.raises(IntegrityError, match=naming(f"{name}: ")):
            load_tokenizer(tmp_path / name, "")
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(IntegrityError, match=naming("empty.json: ", "`tokenizers`")):
        load_tokenizer(tmp_path / "empty.json", tokenizer_sha256("{}"))


def test_berts_vocabulary_ships_with_the_vectors_for_it() -> None:
    tokenizer = bert_uncased()
    assert vocabulary_sha256(tokenizer.to_str()) == pretrained_vocabulary()
    assert tokenizer.encode("Hello, Unaffable").tokens == ["[CLS]", "hello", ",", "una", "##ffa", "##ble", "[SEP]"]
