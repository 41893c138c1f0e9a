"""The short form of ``make torture``: a few commands, disturbed at a few file operations, repeated and compared."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.torture.faults import points
from tests.torture.judge import files, problems
from tests.torture.launcher import launch
from tests.torture.visit import Outcome

WHOLE = {"a": b"1", "rows/b": b"2"}


def outcome(code: int | None, stderr: str = "") -> Outcome:
    return Outcome(code, stderr, (), (), 0.0)


@pytest.mark.parametrize(
    ("first", "again", "found", "wrong"),
    [
        (outcome(-9), outcome(0), WHOLE, []),
        (outcome(2, "error: full\n"), outcome(0), WHOLE, []),
        (outcome(-9), outcome(0), {"a": b"1"}, ["lost"]),
        (outcome(-9), outcome(0), WHOLE | {"a": b"3"}, ["lost"]),
        (outcome(-9), outcome(0), WHOLE | {"c": b""}, ["twice"]),
        (outcome(-9), outcome(0), WHOLE | {"rows/.c.distill-tmp": b""}, ["left"]),
        (outcome(None), outcome(0), WHOLE, ["hung"]),
        (outcome(1, "Traceback …"), outcome(0), WHOLE, ["message"]),
        (outcome(2, "error: one\nerror: two\n"), outcome(0), WHOLE, ["message"]),
        (outcome(-9), outcome(2, "error: no\n"), {}, ["lost", "message"]),
    ],
)
def test_what_is_wrong_is_seen(first: Outcome, again: Outcome, found: dict[str, bytes], wrong: list[str]) -> None:
    assert problems(first, again, {-9, 2}, found, WHOLE) == wrong


def test_equal_neighbours_are_visited_three_times() -> None:
    assert points(("open a", *["write "] * 9, "rename a", "rename a")) == [1, 2, 6, 10, 11, 12]
    assert points(("open a", "write ", "flush ", "rename a"), {"flush"}) == [1, 2, 4]


def test_of_files_with_speeds_only_the_name_counts(tmp_path: Path) -> None:
    for name in ("speeds.json", "rows.json"):
        (tmp_path / name).write_bytes(b"1")
    assert files(tmp_path, ("speeds.json",)) == {"speeds.json": b"", "rows.json": b"1"}


def as_rank(rank: str) -> int:
    return int((os.environ["RANK"], os.environ["WORLD_SIZE"]) != (rank, "2"))


def fail() -> int:
    return 3


def wait() -> int:
    time.sleep(600)
    return 0


def test_each_process_of_the_launcher_has_its_rank() -> None:
    assert launch([partial(as_rank, "0"), partial(as_rank, "1")]) == [0, 0]


@pytest.mark.parametrize(("programs", "codes"), [([fail, wait], [3, -15]), ([wait, fail], [-15, 3])])
def test_when_a_process_fails_the_launcher_ends_the_others(programs: list[Callable[[], int]], codes: list[int]) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a command of another test may have left its own handler
    try:
        assert launch(programs) == codes
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the shim is loaded by Linux's loader")
def test_nothing_is_lost_twice_or_left() -> None:
    command = [sys.executable, "-m", "tests.torture", "--short", "--most", "1", "--seed", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
