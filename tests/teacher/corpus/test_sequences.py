import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.text.text_to_ids import TextReader
from teacher.corpus.sequences import Document, read_sequences
from teacher.settings import Packing
from teacher.tiny import create_tiny_bert

Found = tuple[int, int, str]  # source row, piece, its words

PACKINGS: tuple[Packing, ...] = ("sentences", "blocks")
words = st.sampled_from(["Apple", "bread", "Candle.", "door.", "Engine!", "?", " ", "\n", "unknown"])
texts = st.lists(st.lists(words, max_size=12).map(" ".join), max_size=8)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Knows five words and the full stop."""
    folder = tmp_path_factory.mktemp("tokenizer")
    create_tiny_bert(folder, ["apple bread candle door engine ."], hidden_size=32, num_layers=1)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def cut(
    tokenizer: Tokenizer,
    batches: Sequence[list[Document]],
    packing: Packing = "sentences",
    min_tokens: int = 1,
    max_tokens: int = 100,
) -> list[Found]:
    """The sequences that come out, in words."""
    found: list[Found] = []
    for part in read_sequences(batches, TextReader.of(tokenizer), packing, "en", min_tokens, max_tokens):
        assert len(part) == len(part.source_row_N) == len(part.piece_N) == len(part.ids) > 0
        ids = [tokenizer.decode(part.ids[k].tolist(), skip_special_tokens=False) for k in range(len(part))]
        found += zip(part.source_row_N.tolist(), part.piece_N.tolist(), ids, strict=True)
    return found


def all_words(tokenizer: Tokenizer, text: str) -> list[str]:
    tokens: list[str] = tokenizer.encode(text, add_special_tokens=False).tokens
    return tokens


def test_sentences_are_numbered_within_their_document(tokenizer: Tokenizer) -> None:
    batches = [[(3, "Apple bread. Candle door engine."), (4, ""), (7, "Bread.")], [], [(8, "Door")]]
    assert cut(tokenizer, batches) == [
        (3, 0, "apple bread ."),
        (3, 1, "candle door engine ."),
        (7, 0, "bread ."),
        (8, 0, "door"),
    ]


def test_long_sentences_are_cut_into_pieces(tokenizer: Tokenizer) -> None:
    found = cut(tokenizer, [[(0, "Apple bread candle door engine. Bread apple."), (1, "Candle door.")]], max_tokens=4)
    assert found == [
        (0, 0, "apple bread candle door"),
        (0, 1, "engine ."),
        (0, 2, "bread apple ."),
        (1, 0, "candle door ."),
    ]


def test_short_sequences_are_left_out_numbers_stay(tokenizer: Tokenizer) -> None:
    batches = [[(0, "Apple bread candle door engine. Bread. Door apple."), (1, "Candle.")]]
    assert cut(tokenizer, batches, min_tokens=3, max_tokens=4) == [
        (0, 0, "apple bread candle door"),
        (0, 3, "door apple ."),
    ]
    assert cut(tokenizer, batches, min_tokens=5, max_tokens=5) == [(0, 0, "apple bread candle door engine")]
    assert cut(tokenizer, [[(1, "Candle.")]], min_tokens=3) == []


def test_blocks_run_over_the_ends_of_documents(tokenizer: Tokenizer) -> None:
    batches = [
        [(0, "Apple bread candle"), (1, " "), (2, "Door")],
        [(5, "engine apple bread. candle door engine apple")],
    ]
    assert cut(tokenizer, batches, "blocks", max_tokens=4) == [
        (0, 0, "apple bread candle [SEP]"),
        (2, 0, "door [SEP] engine apple"),
        (5, 0, "bread . candle door"),  # the first that begins in document 5
        (5, 1, "engine apple [SEP]"),
    ]
    assert [row for row, _, _ in cut(tokenizer, batches, "blocks", min_tokens=4, max_tokens=4)] == [0, 2, 5]


def test_no_documents_give_no_sequences(tokenizer: Tokenizer) -> None:
    for packing in PACKINGS:
        assert cut(tokenizer, [], packing) == cut(tokenizer, [[], [(0, ""), (1, " \n")]], packing) == []


@given(texts=texts, max_tokens=st.integers(1, 9))
def test_blocks_hold_every_token_and_all_but_the_last_are_full(
    texts: list[str], max_tokens: int, tokenizer: Tokenizer
) -> None:
    blocks = [text.split() for _, _, text in cut(tokenizer, [list(enumerate(texts))], "blocks", 1, max_tokens)]
    documents = [all_words(tokenizer, text) for text in texts]
    assert [*itertools.chain(*blocks)] == [*itertools.chain(*([*ids, "[SEP]"] for ids in documents if ids))]
    assert all(len(block) == max_tokens for block in blocks[:-1])


@given(texts=texts, max_tokens=st.integers(1, 9))
def test_sentences_hold_every_token_of_their_document(texts: list[str], max_tokens: int, tokenizer: Tokenizer) -> None:
    found = cut(tokenizer, [list(enumerate(texts))], "sentences", 1, max_tokens)
    for row, text in enumerate(texts):
        pieces = [(piece, ids.split()) for source_row, piece, ids in found if source_row == row]
        assert [piece for piece, _ in pieces] == list(range(len(pieces)))
        assert [*itertools.chain(*(ids for _, ids in pieces))] == all_words(tokenizer, text)
    assert all(len(ids.split()) <= max_tokens for _, _, ids in found)


@given(
    texts=texts,
    ends=st.lists(st.integers(0, 8), max_size=5),
    packing=st.sampled_from(PACKINGS),
    min_tokens=st.integers(1, 3),
    max_tokens=st.integers(3, 9),
)
def test_how_documents_are_batched_does_not_matter(
    texts: list[str], ends: list[int], packing: Packing, min_tokens: int, max_tokens: int, tokenizer: Tokenizer
) -> None:
    documents: list[Document] = [(10 * k, text) for k, text in enumerate(texts)]
    batches = [documents[low:high] for low, high in itertools.pairwise([0, *sorted(ends), 8])]
    whole = cut(tokenizer, [documents], packing, min_tokens, max_tokens)
    assert cut(tokenizer, batches, packing, min_tokens, max_tokens) == whole
    assert len({(row, piece) for row, piece, _ in whole}) == len(whole)  # what masking takes as a key


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_tokenizers_truncation_and_padding_are_removed(
    tokenizer: Tokenizer, packing: Packing, tmp_path: Path
) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    other = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    other.enable_truncation(2)
    other.enable_padding(length=6)
    batches = [[(0, "Apple bread candle door"), (1, "Engine")]]
    assert cut(other, batches, packing) == cut(tokenizer, batches, packing)


def test_take_picks_sequences_with_their_keys(tokenizer: Tokenizer) -> None:
    (found,) = read_sequences(
        [[(3, "Apple bread. Candle. Door engine."), (7, "Bread.")]], TextReader.of(tokenizer), "sentences", "en", 1, 9
    )
    taken = found.take(np.array([3, 2]))
    assert taken.source_row_N.tolist() == [7, 3]
    assert taken.piece_N.tolist() == [0, 2]
    assert [tokenizer.decode(taken.ids[k].tolist()) for k in range(2)] == ["bread .", "door engine ."]
