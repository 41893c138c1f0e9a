"""What only an object store has: credentials, buckets, a server that may be gone; and processes killed half way."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import s3fs
from typer.testing import CliRunner

from distill.commands import app
from pipeline.file_names import TOKENIZER_FILE
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME
from pipeline.sharing import remote_folder
from pipeline.sharing.pull import FOLDER
from pipeline.sharing.push import JOURNAL
from tests.helpers.commands import distill, kill_when
from tests.helpers.places import contents, fetch, objects, send
from tests.helpers.rewritten_shards import rewrite_logit


def hang(method: str, mark: Path) -> None:
    """One file at a time, and the line is dead from the fourth on: it neither fails nor goes on."""
    remote_folder.TRANSFERS_AT_ONCE = 1
    seen: list[Any] = []
    usual = getattr(s3fs.S3FileSystem, method)

    def hanging(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(arguments)
        if len(seen) > 3 and "parquet" in str(arguments):
            mark.touch()
            time.sleep(600)
        return usual(self, *arguments, **options)

    setattr(s3fs.S3FileSystem, method, hanging)


def kill_half_way(method: str, mark: Path, *arguments: object) -> None:
    """Runs a command until a method of the file system hangs, which the file ``mark`` shows, and kills it outright."""
    kill_when(distill(*arguments, first=partial(hang, method, mark)), mark.exists)


@pytest.mark.slow
def test_a_push_that_is_killed_leaves_no_set_and_goes_on(opinion_set: ExampleSet, bucket: str, tmp_path: Path) -> None:
    kill_half_way("put_file", tmp_path / "hangs", "push", opinion_set.root, f"{bucket}/set")
    arrived = objects(f"{bucket}/set").keys() - {JOURNAL}
    assert 0 < len(arrived) < len(contents(opinion_set.root)) - 1
    assert FILE_NAME not in arrived
    again = send(opinion_set.root, f"{bucket}/set")
    assert set(again.kept) == arrived
    assert objects(f"{bucket}/set") == contents(opinion_set.root)


@pytest.mark.slow
def test_a_pull_that_is_killed_leaves_nothing_usable_and_goes_on(
    opinion_set: ExampleSet, bucket: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    send(opinion_set.root, f"{bucket}/set")
    kill_half_way("open", tmp_path / "hangs", "pull", f"{bucket}/set", "--store", store)
    assert [path.name for path in store.iterdir()] == [FOLDER]
    arrived = {name for name in contents(store / FOLDER / "opinion") if name.endswith(".parquet")}
    assert 0 < len(arrived) < len(opinion_set.record.shards)
    pulled = fetch(f"{bucket}/set", store)
    shards = {shard.path for shard in opinion_set.record.shards}
    assert set(pulled.fetched) == (shards - arrived) | {TOKENIZER_FILE}
    assert contents(store) == {f"opinion/{name}": data for name, data in contents(opinion_set.root).items()}


def test_a_change_puts_only_what_it_changes(own_set: ExampleSet, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send(own_set.root, f"{bucket}/set")
    path = rewrite_logit(own_set)
    put, usual = [], s3fs.S3FileSystem.put_file

    def noted(self: Any, source: str, *arguments: Any, **options: Any) -> Any:
        put.append(Path(source).relative_to(own_set.root).as_posix())
        return usual(self, source, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "put_file", noted)
    send(own_set.root, f"{bucket}/set")
    assert sorted(put) == ["README.md", path]


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", os.devnull)


def without_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.mark.parametrize(
    ("change", "bucket_name", "message", "code"),
    [
        (lambda monkeypatch: None, "s3://no-such-bucket", "bucket", 2),
        (without_keys, None, "credentials", 2),
        (without_server, None, "127.0.0.1:9", 75),
    ],
)
@pytest.mark.parametrize("command", ["push", "pull"])
def test_what_is_wrong_with_the_way_there_is_one_message(
    opinion_set: ExampleSet,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    bucket_name: str | None,
    message: str,
    code: int,
    command: str,
) -> None:
    change(monkeypatch)
    url = f"{bucket_name or bucket}/set"
    arguments = ["push", str(opinion_set.root), url] if command == "push" else ["pull", url, "--store", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert result.stderr.count("error: ") == 1
    assert f"{url}: " in " ".join(result.stderr.split())
    if command == "push" or bucket_name is None:
        assert message in result.stderr
    assert not list(tmp_path.iterdir())
