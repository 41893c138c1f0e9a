"""What is asked, and how often, with a teacher that counts: its logits are a function of the text alone."""

import hashlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import teacher.dump.answers
from pipeline.arrays import Floats
from pipeline.text.tokenizer import Tokenized
from teacher.dump.answers import Known, logits_once
from teacher.models.classifier import Teacher

FAKE = cast("Teacher", SimpleNamespace(target=SimpleNamespace(num_logits=2)))
ASKED: list[str] = []


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass that takes down what it is asked."""

    def forward(_: Teacher, inputs: Sequence[Any], max_tokens: int, advance: Any = lambda rows: None) -> Floats:
        ASKED.extend(inputs)
        advance(len(inputs))
        return answers(inputs)

    monkeypatch.setattr(teacher.dump.answers, "teacher_logits", forward)
    ASKED.clear()


def answers(texts: Sequence[str]) -> Floats:
    return np.array([[len(text), sum(text.encode())] for text in texts], dtype=np.float32).reshape(-1, 2)


def hashes(texts: Sequence[str]) -> list[bytes]:
    """Sixteen bytes each; every second text's end in a zero byte."""
    return [hashlib.md5(t.encode(), usedforsecurity=False).digest()[:15] + bytes([len(t) % 2]) for t in texts]


def ask(texts: Sequence[str], said: Sequence[str] = ()) -> tuple[Floats, list[int]]:
    done: list[int] = []
    known = Known.of(hashes(said), -answers(said)) if said else Known.empty(FAKE.target.num_logits)
    inputs = cast("Sequence[Tokenized]", texts)
    return logits_once(FAKE, inputs, hashes(texts), known, 100, done.append), done


def test_each_text_is_asked_about_once_in_the_order_of_the_rows() -> None:
    logits_NC, done = ask(["b", "a", "b", "cc", "a", "b"])
    assert ASKED == ["b", "a", "cc"]
    assert logits_NC.tolist() == [[1, 98], [1, 97], [1, 98], [2, 198], [1, 97], [1, 98]]
    assert sum(done) == 6


def test_what_is_known_is_not_asked() -> None:
    logits_NC, done = ask(["b", "a", "b", "cc"], said=["cc", "b", "x"])
    assert ASKED == ["a"]
    assert logits_NC.tolist() == [[-1, -98], [1, 97], [-1, -98], [-2, -198]]  # as it was said then
    assert sum(done) == 4
    ASKED.clear()
    ask(["a", "b"], said=["a", "b"])
    assert ASKED == []


def test_of_several_answers_the_first_counts() -> None:
    known = Known.of(hashes(["a", "b", "a"]), np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32))
    assert known.logits_KC[known.find(np.array(hashes(["a", "b"])))].tolist() == [[1, 2], [3, 4]]
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
