"""Resumable work: killed anywhere and repeated it ends the same; other settings are refused; nothing is done twice."""

import itertools
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import FingerprintMismatchError, IntegrityError
from pipeline.parquet import read_footer
from pipeline.record_file import read_work_record
from pipeline.resumable import FilePart, Processes, RangePart, Status, Workspace, range_parts, ranges

Settings = dict[str, Any]
SETTINGS: Settings = {"seed": 1, "source": "a" * 64}
PARTS = range_parts("rows/train", 10, 3)
EVENTS = {"os.rename", "os.remove", "os.mkdir", "open"}  # as Python's audit hooks name them


def workspace(root: Path, settings: Settings = SETTINGS, command: str = "distill it", **options: Any) -> Workspace:
    return Workspace(root, settings, command, title="numbers", folders=("rows",), **options)


def table(part: RangePart) -> pa.Table:
    return pa.table({"x": list(range(part.start, part.stop))})


def do(root: Path, done: list[str] | None = None, settings: Settings = SETTINGS, **options: Any) -> Status:
    """The work as a command does it; ``done`` gets the parts that it writes."""
    work = workspace(root, settings, **options)
    status = work.start()
    if status != "finished":
        for part in work.missing(PARTS):
            work.write_table(part, table(part))
            if done is not None:
                done.append(part.path)
        work.finish({"sum": sum(sum(pq.read_table(root / p.path)["x"].to_pylist()) for p in PARTS)})
    return status


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def in_child(root: Path, kill_at: int | None) -> int:
    """Does the work in a fork that is killed before a change on disk; returns how many there are without that."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        changes = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal changes
            if event in EVENTS and str(root) in str(arguments[0]):
                changes += 1
                if changes == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            do(root)
            os.write(writer, str(changes).encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    os.close(writer)
    assert kill_at is None or os.WTERMSIG(status) == signal.SIGKILL
    with os.fdopen(reader) as stream:
        return int(stream.read() or 0)


def test_killed_anywhere_and_repeated_the_files_are_the_same_and_no_part_is_written_twice(tmp_path: Path) -> None:
    changes = in_child(tmp_path / "whole", None)
    expected = files(tmp_path / "whole")
    assert changes > 10
    counts = set()
    for number in range(1, changes + 1):
        root, done = tmp_path / str(number), list[str]()
        in_child(root, number)
        there = {name for name in files(root) if name in {part.path for part in PARTS}} if root.exists() else set()
        do(root, done)
        assert files(root) == expected, number
        assert not there & set(done), number
        counts.add(len(there))
    assert counts == {0, 1, 2, 3, 4}


def test_the_states_of_work(tmp_path: Path) -> None:
    assert workspace(tmp_path).start() == "fresh"
    assert workspace(tmp_path).start() == "fresh"
    workspace(tmp_path).write_table(PARTS[0], table(PARTS[0]))
    assert workspace(tmp_path, command="again").start() == "resumed"
    record = read_work_record(tmp_path / "work.json")
    assert record == {"state": "running", "command": "distill it", "settings": SETTINGS}
    with pytest.raises(IntegrityError, match=r"work\.json: state 'running'"):
        workspace(tmp_path).result()
    assert do(tmp_path) == "resumed"
    assert do(tmp_path) == "finished"
    assert workspace(tmp_path).result() == {"sum": 45}
    assert workspace(tmp_path).finish({"sum": 0})["result"] == {"sum": 45}  # of two at once the first one's stays


def test_finished_work_that_was_damaged_can_be_reopened(tmp_path: Path) -> None:
    do(tmp_path)
    (tmp_path / PARTS[2].path).unlink()
    work, done = workspace(tmp_path), list[str]()
    assert work.start() == "finished"
    work.reopen()
    assert "result" not in work.record()
    assert do(tmp_path, done) == "resumed"
    assert done == [PARTS[2].path]
    assert work.result() == {"sum": 45}


def test_the_context_may_differ_from_try_to_try(tmp_path: Path) -> None:
    workspace(tmp_path, context={"place": "here"}).start()
    workspace(tmp_path).write_table(PARTS[0], table(PARTS[0]))
    work = workspace(tmp_path, context={"place": "there"})
    assert work.start() == "resumed"
    assert work.record()["place"] == "there"


@pytest.mark.parametrize("is_finished", [False, True])
def test_other_settings_are_refused_by_name_and_nothing_is_touched(tmp_path: Path, is_finished: bool) -> None:
    if is_finished:
        do(tmp_path)
    else:
        workspace(tmp_path).start()
        workspace(tmp_path).write_table(PARTS[1], table(PARTS[1]))
    (tmp_path / ".work.json.0.distill-tmp").write_text("of a command that is writing here right now")
    before = files(tmp_path)
    with pytest.raises(FingerprintMismatchError, match="- seed: 1 there, 2 now"):
        do(tmp_path, settings=SETTINGS | {"seed": 2})
    with pytest.raises(FingerprintMismatchError, match="source: aaaaaaaaaaaa… there, bbbbbbbbbbbb… now"):
        do(tmp_path, settings=SETTINGS | {"source": "b" * 64})
    assert files(tmp_path) == before


def test_settings_of_work_that_has_written_nothing_may_change(tmp_path: Path) -> None:
    workspace(tmp_path).start()
    work = workspace(tmp_path, {"seed": 2}, "another")
    assert work.start() == "fresh"
    assert work.record() == {"state": "running", "command": "another", "settings": {"seed": 2}}
    with pytest.raises(FingerprintMismatchError, match="seed: 2 there, 1 now"):
        workspace(tmp_path).require_own()  # what a slower command of the first settings looks at before it writes


def test_any_file_can_be_what_would_be_lost(tmp_path: Path) -> None:
    options: Settings = {"progress": "checkpoint.safetensors"}
    workspace(tmp_path, **options).start()
    (tmp_path / "checkpoint.safetensors").touch()
    assert workspace(tmp_path, **options).start() == "resumed"
    with pytest.raises(FingerprintMismatchError):
        workspace(tmp_path, {}, **options).start()


def test_what_can_be_made_again_is_done_again(tmp_path: Path) -> None:
    assert do(tmp_path, redo=True) == "fresh"
    assert do(tmp_path, redo=True) == "finished"
    other = SETTINGS | {"seed": 2}
    done: list[str] = []
    do(tmp_path, done, other, redo=True)
    assert len(done) == len(PARTS)
    assert read_work_record(tmp_path / "work.json")["settings"] == other
    (tmp_path / "work.json").write_text("{")
    do(tmp_path, settings=other, redo=True)
    assert workspace(tmp_path, other).result() == {"sum": 45}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"state": "running"}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "work.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"work\.json"):
        workspace(tmp_path).start()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    workspace(tmp_path).start()
    left = tmp_path / "rows" / ".x.parquet.0.distill-tmp"
    left.write_text("half")
    workspace(tmp_path).start()
    assert not left.exists()


def test_a_part_is_there_if_its_footer_is_the_expected_one(tmp_path: Path) -> None:
    work = workspace(tmp_path)
    work.start()
    assert work.missing(PARTS) == PARTS
    for part in (PARTS[0], PARTS[2]):
        work.write_table(part, table(part))
    assert work.missing(PARTS) == [PARTS[1], PARTS[3]]
    footer = {"fingerprint": work.fingerprint, "start": 5, "stop": 7}
    assert read_footer(tmp_path / PARTS[2].path) == footer
    first, second = (tmp_path / PARTS[k].path for k in (0, 1))
    second.write_bytes(first.read_bytes())  # of another range
    assert work.missing(PARTS) == [PARTS[1], PARTS[3]]
    first.write_bytes(first.read_bytes()[:-9])  # torn
    assert work.missing(PARTS) == [PARTS[0], PARTS[1], PARTS[3]]
    assert workspace(tmp_path, SETTINGS | {"seed": 2}).missing(PARTS) == PARTS


def test_a_part_can_be_a_file_with_a_name_alone(tmp_path: Path) -> None:
    work, part = Workspace(tmp_path, SETTINGS), FilePart("answers.parquet")
    assert not work.has(part)
    work.write_table(part, pa.table({"x": [1]}))
    assert work.has(part)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.parquet"]  # without `start` there is no record
    assert not Workspace(tmp_path, {}).has(part)


def test_processes_share_the_missing_parts(tmp_path: Path) -> None:
    work, parts = Workspace(tmp_path, SETTINGS), range_parts("train", 10, 2)
    work.write_table(parts[1], table(parts[1]))
    states = [
        SimpleNamespace(process_index=k, num_processes=3, wait_for_everyone=lambda: None)  # the operating system's part
        for k in range(3)
    ]
    shares = [work.my_missing(parts, cast("Processes", state)) for state in states]
    assert shares == [[parts[0], parts[4]], [parts[2]], [parts[3]]]


def test_ranges_cover_everything_once() -> None:
    for total, size, expected in [(10, 4, [(0, 3), (3, 6), (6, 10)]), (4, 4, [(0, 4)]), (0, 4, [(0, 0)])]:
        assert ranges(total, size) == expected
    assert [part.path for part in range_parts("train", 5, 3)] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]


@given(total=st.integers(0, 500), size=st.integers(1, 50))
def test_ranges_are_no_larger_than_they_may_be(total: int, size: int) -> None:
    bounds = ranges(total, size)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))
    assert all(0 <= stop - start <= size for start, stop in bounds)


def test_records_are_json_with_a_checksum(tmp_path: Path) -> None:
    do(tmp_path)
    text = (tmp_path / "work.json").read_text()
    (tmp_path / "work.json").write_text(text.replace('"sum": 45', '"sum": 46'))
    assert json.loads(text)["result"] == {"sum": 45}
    with pytest.raises(IntegrityError, match="record_sha256"):
        workspace(tmp_path).result()
