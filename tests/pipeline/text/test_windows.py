"""Windows of long inputs, held against those that `tokenizers` cuts by its own ``stride``."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pipeline.errors import ConfigError
from pipeline.text.text_to_ids import TextReader
from pipeline.text.tokenizer import Tokenized, wordpiece
from pipeline.text.windows import Windows, are_truncated, window_lengths
from tests.helpers.messages import naming

WORDS = [chr(ord("a") + k) for k in range(26)]
READER = TextReader.of(wordpiece(WORDS))
LONGEST = 1000


def text(length: int) -> str:
    return " ".join(WORDS[k % 26] for k in range(length))


def windows(lengths: list[int], size: int, stride: int) -> list[Tokenized]:
    first, *second = ([text(length)] for length in lengths)
    (row,) = READER.tokenize(first, second[0] if second else None, LONGEST)
    return Windows.of(READER.tokenizer, len(lengths) == 2, size, stride).split(row)


def of_the_library(lengths: list[int], size: int, stride: int) -> list[tuple[list[int], list[int]]]:
    tokenizer = Tokenizer.from_str(READER.tokenizer.to_str())
    strategy = "only_first" if len(lengths) == 1 or lengths[0] > lengths[1] else "only_second"
    tokenizer.enable_truncation(size, stride=stride, strategy=strategy)
    first, *second = map(text, lengths)
    encoding = tokenizer.encode(first, second[0] if second else None)
    return [(part.ids, part.type_ids) for part in (encoding, *encoding.overflowing)]


@settings(max_examples=50)
@given(st.integers(0, 60), st.integers(4, 20), st.data())
def test_windows_of_single_sentences_are_those_of_the_library(length: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(0, size - 3))
    cut = [(window.ids, window.type_ids) for window in windows([length], size, stride)]
    assert cut == of_the_library([length], size, stride)


@settings(max_examples=50)
@given(st.integers(0, 60), st.integers(8, 30), st.booleans(), st.data())
def test_of_a_pair_the_longer_one_is_cut_as_by_the_library(
    length: int, size: int, is_second: bool, data: st.DataObject
) -> None:
    room = size - 3
    stride = data.draw(st.integers(0, room // 2 - 1))
    short = data.draw(st.integers(0, min(length, room // 2)))
    lengths = [short, length] if is_second else [length, short]
    cut = [(window.ids, window.type_ids) for window in windows(lengths, size, stride)]
    assert cut == of_the_library(lengths, size, stride)


def test_of_a_shorter_sentence_half_a_window_is_read() -> None:
    both = windows([6, 9], 11, 1)  # eight tokens of texts
    ids = {word: READER.tokenizer.token_to_id(word) for word in WORDS}
    assert [window.ids1 for window in both] == [[ids[word] for word in "abcd"]] * 3
    assert [window.ids2 for window in both] == [[ids[word] for word in part] for part in ("abcd", "defg", "ghi")]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=1, max_size=8), st.integers(9, 30))
def test_lengths_are_those_of_the_windows(pairs: list[tuple[int, int]], size: int) -> None:
    stride = (size - 3) // 2 - 1
    cut = [[len(window.ids) for window in windows([*pair], size, stride)] for pair in pairs]
    long_N, short_N = np.array([max(pair) for pair in pairs]), np.array([min(pair) for pair in pairs])
    assert window_lengths(long_N, short_N, 3, size, stride).tolist() == list(chain.from_iterable(cut))


def test_only_pairs_of_two_long_sentences_are_cut() -> None:
    lengths = [np.array([10, 30, 6, 9]), np.array([10, 4, 20, 0])]  # room for 12
    assert are_truncated(lengths, 12, by_windows=True).tolist() == [True, False, False, False]
    assert are_truncated(lengths, 12, by_windows=False).tolist() == [True, True, True, False]
    assert not are_truncated(lengths[:1], 12, by_windows=True).any()


def test_windows_without_progress_are_refused() -> None:
    with pytest.raises(ConfigError, match=naming("--doc-stride: 6", "window of 8")):
        windows([3], 8, 6)
    with pytest.raises(ConfigError, match=naming("--doc-stride: 4", "window of 11")):
        windows([3, 3], 11, 4)
