"""A file in parts: whole or absent wherever its process is killed, and then as if nobody had killed it."""

import csv
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from pipeline.errors import DataError, FingerprintMismatchError
from pipeline.files import make_folder
from student.predict import parts
from student.predict.parts import write_in_parts
from tests.helpers.messages import naming

SETTINGS = {"file": "abc", "columns": ["x"]}
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}  # as Python's audit hooks name them


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ROWS_PER_PART", 3)


def numbers(done: int, rows: int = 11, wide: int = 2) -> Iterator[pa.Table]:
    """The numbers from ``done`` up, two a table."""
    for start in range(done, rows, wide):
        yield pa.table({"x": list(range(start, min(start + wide, rows)))})


def in_child(path: Path, kill_at: int | None) -> int:
    """Writes the file in a fork that is killed before a change on disk; returns how many there are without that."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        changes = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal changes
            if event in EVENTS and str(path.parent) in str(arguments[0]):
                changes += 1
                if changes == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            write_in_parts(path, SETTINGS, numbers)
            os.write(writer, str(changes).encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    os.close(writer)
    assert kill_at is None or os.WTERMSIG(status) == signal.SIGKILL
    with os.fdopen(reader) as stream:
        return int(stream.read() or 0)


@pytest.mark.parametrize("ending", parts.FORMATS)
def test_killed_anywhere_and_repeated_the_file_is_the_same_and_nothing_else_is_left(
    ending: str, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    name = f"out{ending}"
    changes = in_child(tmp_path / "whole" / name, None)
    expected = (tmp_path / "whole" / name).read_bytes()
    left = {p.name for p in (tmp_path / "whole").iterdir()}
    assert changes > 10
    asked = []
    for number in range(1, changes + 1):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        in_child(path, number)
        assert not path.exists() or path.read_bytes() == expected

        def from_there(done: int) -> Iterator[pa.Table]:
            asked.append(done)
            return numbers(done)

        write_in_parts(path, SETTINGS, from_there)
        assert {p.name for p in path.parent.iterdir()} == left, number
        assert path.read_bytes() == expected, number
    assert {0, 4, 8, 11} <= set(asked)  # what was finished was not made again
    assert len(left) == (1 if ending == ".parquet" else 2)


ROWS: list[dict[str, Any]] = [
    {"id": 1, "text": 'a "quoted", tab\t and\nline', "p": {"no": 0.25, "yes": 0.75}, "spans": [{"start": 0}]},
    {"id": 2, "text": "", "p": {"no": 1.0, "yes": 0.0}, "spans": []},
    {"id": 3, "text": None, "p": None, "spans": None},
]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_other_formats_hold_the_same_rows(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{ending}"
    write_in_parts(path, SETTINGS, lambda _: [pa.Table.from_pylist(ROWS)])
    if ending == ".jsonl":
        assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS
        return
    with path.open(newline="") as stream:
        read = list(csv.DictReader(stream, delimiter="," if ending == ".csv" else "\t"))
    assert list(read[0]) == ["id", "text", "p.no", "p.yes", "spans"]
    assert [row["text"] for row in read] == [row["text"] or "" for row in ROWS]
    assert [row["p.yes"] for row in read] == ["0.75", "0", ""]
    assert json.loads(read[0]["spans"]) == [{"start": 0}]


def test_a_text_file_that_was_changed_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_in_parts(path, SETTINGS, numbers)
    assert not write_in_parts(path, SETTINGS, lambda _: pytest.fail("asked again"))
    path.write_text("x\n1\n")
    with pytest.raises(DataError, match=naming("out.csv")):
        write_in_parts(path, SETTINGS, numbers)
    assert path.read_text() == "x\n1\n"


def test_rows_are_in_order_whatever_the_tables_and_no_rows_are_a_file_too(tmp_path: Path) -> None:
    for wide in (1, 2, 5, 20):
        path = tmp_path / f"{wide}.parquet"
        assert write_in_parts(path, SETTINGS, partial(numbers, wide=wide))
        assert pq.read_table(path).to_pydict() == {"x": list(range(11))}
    empty = pa.table({"x": pa.array([], pa.int64())})
    write_in_parts(tmp_path / "none.parquet", SETTINGS, lambda _: [empty, empty])
    assert pq.read_table(tmp_path / "none.parquet").equals(empty)


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    write_in_parts(path, SETTINGS, numbers)
    before = path.stat().st_mtime_ns
    assert not write_in_parts(path, SETTINGS, lambda _: pytest.fail("asked again"))
    assert path.stat().st_mtime_ns == before


def test_other_settings_and_other_files_are_refused_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    write_in_parts(path, SETTINGS, numbers)
    with pytest.raises(FingerprintMismatchError, match=naming("out.parquet", "file: abc", "def")):
        write_in_parts(path, SETTINGS | {"file": "def"}, numbers)
    for foreign in ("letter.parquet", "table.parquet"):
        (tmp_path / "letter.parquet").write_text("dear all")
        pq.write_table(pa.table({"y": [1]}), tmp_path / "table.parquet")
        before = (tmp_path / foreign).read_bytes()
        with pytest.raises(DataError, match=naming(f"{tmp_path / foreign}: ")):
            write_in_parts(tmp_path / foreign, SETTINGS, numbers)
        assert (tmp_path / foreign).read_bytes() == before


def test_parts_of_other_settings_are_not_gone_on_with(tmp_path: Path) -> None:
    def failing(done: int) -> Iterator[pa.Table]:
        yield from numbers(done, rows=6)
        raise DataError("row 6 is wrong")

    path = tmp_path / "out.parquet"
    with pytest.raises(DataError, match="row 6"):
        write_in_parts(path, SETTINGS, failing)
    assert not path.exists()
    with pytest.raises(FingerprintMismatchError, match=naming(".distill-parts", "out.parquet", "columns: x")):
        write_in_parts(path, SETTINGS | {"columns": []}, numbers)


@pytest.mark.parametrize("is_there", [False, True])
def test_two_at_once_do_not_mix(is_there: bool, tmp_path: Path) -> None:
    if is_there:
        write_in_parts(tmp_path / "out.parquet", SETTINGS, numbers)
    folder = tmp_path / ".out.parquet.distill-parts"
    folder.mkdir()
    (folder / "part-00000.parquet").write_text("of the other process")
    with FileLock(folder / "lock"), pytest.raises(DataError, match=naming("out.parquet: ")):
        write_in_parts(tmp_path / "out.parquet", SETTINGS, numbers)
    assert (folder / "part-00000.parquet").exists()


def test_a_file_that_another_process_finishes_just_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others_are_faster(folder: Path) -> None:
        monkeypatch.setattr(parts, "make_folder", make_folder)
        write_in_parts(path, SETTINGS, numbers)
        make_folder(folder)

    path, others = tmp_path / "out.parquet", SETTINGS | {"file": "def"}
    for settings in (SETTINGS, others):
        path.unlink(missing_ok=True)
        monkeypatch.setattr(parts, "make_folder", others_are_faster)
        with pytest.raises(FingerprintMismatchError) if settings == others else nullcontext():
            assert not write_in_parts(path, settings, lambda _: pytest.fail("asked again"))
        assert pq.read_table(path).to_pydict() == {"x": list(range(11))}
