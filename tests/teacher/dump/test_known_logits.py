"""Which texts the teacher predicts, and how often, also across jobs. Its logits depend on the text alone."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.arrays import Floats
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from pipeline.text.tokenizer import Tokenized
from teacher.dump.known_logits import FOLDER, Known, logits_once, read_shared_answers, write_shared_answers
from teacher.dumps import dump
from tests.helpers.dumps import dump_config

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


@pytest.fixture
def data(work: Path, tmp_path: Path) -> Path:
    """The single-sentence task, of which the last training row reads as the first one, in another shard."""
    folder = tmp_path / "data" / "opinion"
    folder.mkdir(parents=True)
    for path in (work / "data" / "opinion").iterdir():
        lines = path.read_text().splitlines()
        if path.stem == "train":
            lines[-1] = json.dumps(json.loads(lines[-1]) | {"sentence1": json.loads(lines[0])["sentence1"]})
        (folder / path.name).write_text("\n".join(lines) + "\n")
    return folder.parent


def job(work: Path, data: Path, store: Path, index: int) -> SetRecord:
    record = dump(dump_config(work, "opinion", store, data=data, shard_index=index, num_shards=2), "job")
    assert record is not None
    return record


def test_the_second_job_takes_the_answers_of_the_first(work: Path, teachers: Path, data: Path, tmp_path: Path) -> None:
    staged = job(work, data, tmp_path, 0)
    known = read_shared_answers(tmp_path, staged)
    assert known is not None
    assert len(known.hash_K) >= 1
    marked = replace(known, logits_TC=known.logits_TC + 1000)  # what no teacher says
    write_shared_answers(tmp_path, staged, marked)
    verified = job(work, data, tmp_path, 1)
    assert verified.state == "verified"
    shards = verified.shards_of("train")
    is_marked = np.abs(ExampleSet.open(tmp_path / "opinion").gold("train")[0]).max(axis=1) > 900
    first, last = is_marked[0], is_marked[-1]
    assert (first, last) == tuple(verified.shards.index(shard) % 2 == 1 for shard in (shards[0], shards[-1]))
    assert first != last
    assert not list((tmp_path / FOLDER).iterdir())


def test_what_is_kept_comes_back_and_nothing_else(store: Path, tmp_path: Path) -> None:
    record = ExampleSet.open(store / "opinion").record
    assert read_shared_answers(tmp_path, record) is None
    hashes = [b"a" * 16, b"b" * 15 + b"\0"]
    write_shared_answers(tmp_path, record, Known.of(hashes, np.array([[1, 2], [3, 4]], np.float32)))
    known = read_shared_answers(tmp_path, record)
    assert known is not None
    assert known.take(known.find(np.array(hashes, "S16"))).tolist() == [[1, 2], [3, 4]]
    write_shared_answers(tmp_path, record, Known.empty(2))
    empty = read_shared_answers(tmp_path, record)
    assert empty is not None
    assert len(empty.hash_K) == 0
    (path,) = (tmp_path / FOLDER).iterdir()
    write_shared_answers(tmp_path, record, Known.of([b"a" * 16], np.array([[1, np.nan]], np.float32)))
    assert read_shared_answers(tmp_path, record) is None
    path.write_bytes(path.read_bytes()[:-9])
    assert read_shared_answers(tmp_path, record) is None
    other = record.model_copy(update={"settings": record.settings | {"precision": "bf16"}})
    assert read_shared_answers(tmp_path, other) is None
