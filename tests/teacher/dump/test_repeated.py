"""A job reuses the predictions of an earlier job for texts that occur in several shards."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import SetRecord
from teacher.dump.known_logits import FOLDER, Known, read_shared_answers, write_shared_answers
from teacher.dumps import dump
from tests.helpers.dumps import dump_config


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
