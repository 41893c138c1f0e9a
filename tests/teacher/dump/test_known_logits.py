"""Which texts the teacher predicts, and how often. It counts, and its logits depend on the text alone."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrays import Floats
from pipeline.text.tokenizer import Tokenized
from teacher.dump.known_logits import Known, logits_once

ASKED: list[str] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    ASKED.clear()


def forward(inputs: Sequence[Any], advance: Callable[[int], None]) -> Floats:
    """A forward pass that records its inputs."""
    ASKED.extend(inputs)
    advance(len(inputs))
    return answers(inputs)


def forward_of_letters(inputs: Sequence[Any], advance: Callable[[int], None]) -> Floats:
    """The same with logits of each letter of a text."""
    ASKED.extend(inputs)
    advance(len(inputs))
    return answers("".join(inputs))


def answers(texts: Sequence[str]) -> Floats:
    return np.array([[len(text), sum(text.encode())] for text in texts], dtype=np.float32).reshape(-1, 2)


def hashes(texts: Sequence[str]) -> list[bytes]:
    """Sixteen bytes each; every second text's end in a zero byte."""
    return [hashlib.md5(t.encode(), usedforsecurity=False).digest()[:15] + bytes([len(t) % 2]) for t in texts]


def ask(texts: Sequence[str], said: Sequence[str] = ()) -> tuple[Floats, list[int]]:
    done: list[int] = []
    known = Known.of(hashes(said), -answers(said)) if said else Known.empty(2)
    inputs = cast("Sequence[Tokenized]", texts)
    lengths = np.ones(len(texts), dtype=np.int64)
    return logits_once(forward, inputs, lengths, hashes(texts), known, done.append), done


def test_each_text_is_asked_about_once_in_the_order_of_the_rows() -> None:
    logits_NC, done = ask(["b", "a", "b", "cc", "a", "b"])
    assert ASKED == ["b", "a", "cc"]
    assert logits_NC.tolist() == [[1, 98], [1, 97], [1, 98], [2, 198], [1, 97], [1, 98]]
    assert sum(done) == 6


def test_what_is_known_is_not_asked() -> None:
    logits_NC, done = ask(["b", "a", "b", "cc"], said=["cc", "b", "x"])
    assert ASKED == ["a"]
    assert logits_NC.tolist() == [[-1, -98], [1, 97], [-1, -98], [-2, -198]]  # as it was predicted then
    assert sum(done) == 4
    ASKED.clear()
    ask(["a", "b"], said=["a", "b"])
    assert ASKED == []


def test_of_several_answers_the_first_counts() -> None:
    known = Known.of(hashes(["a", "b", "a"]), np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32))
    assert known.take(known.find(np.array(hashes(["a", "b"])))).tolist() == [[1, 2], [3, 4]]
    assert known.find(np.array(hashes(["c"]))).tolist() == [-1]


@given(texts=st.lists(st.sampled_from("abcdefgh") | st.text(max_size=3), max_size=30), data=st.data())
def test_the_answers_are_those_of_asking_every_row(texts: list[str], data: Any) -> None:
    ASKED.clear()
    said = data.draw(st.lists(st.sampled_from(texts or ["a"]), unique=True))
    logits_NC, done = ask(texts, said)
    expected = np.where(np.isin(texts, said)[:, None], -1, 1) * answers(texts) if texts else answers([])
    np.testing.assert_array_equal(logits_NC, expected)
    assert sorted(ASKED) == sorted(set(texts) - set(said))
    assert sum(done) == len(texts)


@given(texts=st.lists(st.text("abc", max_size=3), max_size=20), data=st.data())
def test_texts_may_have_logits_of_each_of_their_letters(texts: list[str], data: Any) -> None:
    ASKED.clear()
    said = data.draw(st.lists(st.sampled_from(texts or ["a"]), unique=True))
    known = Known.of(hashes(said), -answers("".join(said)), [len(text) for text in said])
    inputs = cast("Sequence[Tokenized]", texts)
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    logits_TC = logits_once(forward_of_letters, inputs, lengths, hashes(texts), known, lambda rows: None)
    signs = np.repeat(np.where(np.isin(texts, said), -1, 1), lengths) if texts else np.ones(0)
    np.testing.assert_array_equal(logits_TC, signs[:, None] * answers("".join(texts)))
    assert sorted(ASKED) == sorted(set(texts) - set(said))
