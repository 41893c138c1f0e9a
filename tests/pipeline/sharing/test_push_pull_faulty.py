"""A network between a set and its bucket that cuts, loses, repeats and hangs."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from distill.commands import app
from pipeline.errors import PassingError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sharing.push import JOURNAL
from tests.helpers.faulty_proxy import FAULTS, faulty
from tests.helpers.places import contents, objects

PATIENCE_S, TIMES, EVERY = 1, 20, 7


def repeat(arguments: list[str]) -> int:
    """Repeats a command until it succeeds, and returns how often. Every failure before must be a temporary one."""
    for times in range(1, TIMES + 1):
        result = CliRunner().invoke(app, arguments)
        if result.exit_code == 0:
            return times
        assert result.exit_code == PassingError.exit_code, result.stderr
        assert result.stderr.count("error: ") == 1
    raise AssertionError(f"{TIMES} times in vain: {result.stderr}")


@pytest.mark.slow
def test_a_set_goes_through_a_faulty_network_and_comes_back_whole(
    opinion_set: ExampleSet, bucket: str, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", PATIENCE_S)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)  # so that faults reach the command
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with faulty(s3_server, EVERY) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        pushes = repeat(["push", str(opinion_set.root), f"{bucket}/set"])
        pulls = repeat(["pull", f"{bucket}/set", "--store", str(tmp_path)])
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    s3fs.S3FileSystem.clear_instance_cache()
    assert proxy.requests > EVERY * len(FAULTS)
    assert pushes + pulls > 2
    there = objects(f"{bucket}/set")
    assert {name: data for name, data in there.items() if name != JOURNAL} == contents(opinion_set.root)
    assert contents(tmp_path) == {f"opinion/{name}": data for name, data in contents(opinion_set.root).items()}
