"""The codes that commands end with: what launchers decide by."""

import errno
import os
import shutil
import signal
from collections import namedtuple
from functools import partial
from pathlib import Path

import duckdb
import pytest
import typer

from distill.commands.command import reports_errors
from pipeline.errors import DataError, PassingError, passes
from pipeline.files import write_error
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.text.tokenizer import reported
from tests.helpers.commands import distill, invoke, signal_in
from tests.helpers.dumps import dump_config


def raised_from(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "is_passing"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.ESTALE, "stale"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (raised_from(RuntimeError("hub"), ConnectionError("refused")), True),
        (raised_from(RuntimeError("hub"), ValueError("what")), False),
        (type("OfflineModeIsEnabled", (ConnectionError,), {})(), False),
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (PermissionError(errno.EACCES, "no"), False),
        (ValueError(), False),
    ],
)
def test_what_time_mends(error: Exception, is_passing: bool) -> None:
    assert passes(error) == is_passing


def test_a_circle_of_causes_comes_to_an_end() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert not passes(one)


def test_libraries_failures_keep_their_kind() -> None:
    with pytest.raises(PassingError, match="the model: "), reported("the model", DataError):
        raise ConnectionRefusedError("refused")
    with pytest.raises(DataError) as caught, reported("the model", DataError):
        raise ValueError("what")
    assert type(caught.value) is DataError
    assert type(write_error(Path("x"), PermissionError(errno.EACCES, "no"))) is DataError


def test_a_full_disk_is_75_and_a_wrong_flag_2(work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = dump_config(work, "opinion", tmp_path).rows
    flags = [
        "--manifest",
        rows.manifest,
        "--data",
        rows.data,
        "--model-name-or-path",
        "x",
        "--store",
        tmp_path,
    ]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 10, 0))
    full = invoke("teacher-dump", *flags)
    assert (full.exit_code, str(tmp_path) in full.stderr) == (75, True)
    assert invoke("teacher-dump", *flags, "--shard-index", 3).exit_code == 2


@pytest.mark.parametrize(("code", "exit_code"), [(errno.ESTALE, 75), (errno.EBADF, 1)])
def test_a_store_that_cannot_be_reached_is_75_and_a_fault_of_ours_is_none_of_its_kind(
    code: int, exit_code: int, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise OSError(code, "reason")

    monkeypatch.setattr("teacher.dump.driver.make_folder", read)
    rows = dump_config(work, "opinion", work).rows
    result = invoke("teacher-dump", "--manifest", rows.manifest, "--data", rows.data, "--model-name-or-path", "x")
    assert result.exit_code == exit_code
    assert isinstance(result.exception, OSError) == (exit_code == 1)


def test_a_data_base_without_memory_is_2_and_another_fault_of_it_ours(capsys: pytest.CaptureFixture[str]) -> None:
    @reports_errors
    def run(error: Exception) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        run(duckdb.OutOfMemoryException("Out of Memory Error: Allocation failure"))
    assert ended.value.exit_code == 2
    assert "memory" in capsys.readouterr().err
    with pytest.raises(duckdb.BinderException):
        run(duckdb.BinderException("no such column"))


def test_sigterm_is_143(work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "pipeline.sources.json_rows.parsed_lines", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
    )
    rows = dump_config(work, "opinion", tmp_path).rows
    result = invoke("teacher-dump", "--manifest", rows.manifest, "--data", rows.data, "--model-name-or-path", "x")
    assert (result.exit_code, "stopped" in result.stderr) == (143, True)


ENDLESS = "with recursive r(i) as (select 1 union all select i + 1 from r) select count(*) from r"
DEAF = "select list_sort(list_transform(range(20000000), lambda x: hash(x)))"  # one piece of work, of some seconds


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("query", [ENDLESS, DEAF])
def test_a_signal_ends_any_query_within_a_second_or_two(
    query: str, number: int, exit_code: int, store: Path, tmp_path: Path
) -> None:
    shelf = shutil.copytree(store, tmp_path / "store")
    process = distill("sql", query, "--store", shelf, first=partial(signal_in, "_answer", number))
    out, error = process.communicate(timeout=20)
    assert (process.returncode, out) == (exit_code, "")
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1


def test_a_signal_ends_an_endless_condition_of_a_training(opinion_set: ExampleSet, tmp_path: Path) -> None:
    process = distill(
        *("train-student", "--set", opinion_set.root, "--where", f"source_row < ({ENDLESS})"),
        *("--output-dir", tmp_path / "run"),
        first=partial(signal_in, "to_arrow", signal.SIGTERM),
    )
    _, error = process.communicate(timeout=20)
    assert process.returncode == 143, error
