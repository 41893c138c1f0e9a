"""A private copy of a dumped set, for tests that damage it, and places to push sets to."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from pipeline.logit_set.reader import LogitSet, open_set
from pipeline.sql.gate import open_database, open_files


@pytest.fixture
def own_set(opinion_set: LogitSet, tmp_path: Path) -> LogitSet:
    """The single-sentence set, free to be changed."""
    shutil.copytree(opinion_set.root, tmp_path / "own" / "opinion")
    return open_set(tmp_path / "own" / "opinion")


@pytest.fixture
def bucket(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket; whoever inherits the environment reaches it."""
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = "".join(c if c.isalnum() else "-" for c in tmp_path.name.lower())[-60:].strip("-")
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
    return f"s3://{name}"


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a set may be pushed to: a ``file://`` URL, a bucket."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/sets/opinion"
    return f"file://{tmp_path}/there/opinion"


@pytest.fixture(params=["files", "database"])
def connection(request: pytest.FixtureRequest, folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The view ``v`` of a test's folder behind the gate, by its file and by its database."""
    shard = folder / "shard.parquet"
    opened = (
        open_files({"v": [shard]}) if request.param == "files" else open_database(folder / "catalog.duckdb", [shard])
    )
    with opened as connection:
        yield connection
