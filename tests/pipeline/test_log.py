"""``--log-file``: the log of a command for machines."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline import console, log
from pipeline.sets.kinds.examples import ExampleSet
from tests.helpers.commands import invoke


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_has_start_and_end_and_repeated_commands_follow_on(opinion_set: ExampleSet, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    for name in ("opinion", "opinoin"):
        invoke("verify", name, "--store", opinion_set.root.parent, "--log-file", file)
    told = [(line["event"], line.get("exit_code")) for line in lines(file) if line["event"] != "progress"]
    assert told == [("start", None), ("end", 0), ("start", None), ("error", None), ("end", 2)]
    [error] = [line["message"] for line in lines(file) if line["event"] == "error"]
    assert "'opinoin'" in error
    assert all(
        line["process"].startswith(f"{os.getpid()}@") and line["time"].endswith("+00:00") for line in lines(file)
    )


def test_what_is_said_stands_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.jsonl"
    with log.written_to(file):
        console.note("a\nb")
        console.warn("c")
        with console.progress(7, "steps") as steps:
            steps.advance(3)
    console.note("after it")
    values = [
        {key: v for key, v in line.items() if key in ("event", "message", "what", "done", "total")}
        for line in lines(file)
    ]
    assert values[1:-1] == [
        {"event": "note", "message": "a\nb"},
        {"event": "warning", "message": "c"},
        {"event": "progress", "what": "steps", "done": 3, "total": 7},
    ]


def test_a_bug_stands_in_it_before_the_end(tmp_path: Path) -> None:
    with pytest.raises(KeyError), log.written_to(tmp_path / "log.jsonl"):
        raise KeyError("k")
    told = [(line["event"], line.get("message"), line.get("exit_code")) for line in lines(tmp_path / "log.jsonl")]
    assert told[1:] == [("error", "KeyError: 'k'", None), ("end", None, 1)]


def test_a_place_that_cannot_be_written_is_told_before_any_work(tmp_path: Path) -> None:
    result = invoke("verify", "x", "--store", tmp_path, "--log-file", tmp_path / "gone" / "log.jsonl")
    assert result.exit_code == 2
    assert result.stderr.count("error: ") == 1
    assert "--log-file" in result.stderr


def test_a_full_disk_stops_the_log_and_not_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with log.written_to(Path("/dev/full")):
        console.note("goes on")
    assert capsys.readouterr().err.count("--log-file") == 1
