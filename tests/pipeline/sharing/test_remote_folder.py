"""A place behind plain HTTP: a missing file, and a server that does not report whether a file exists."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, DataError, IntegrityError, PassingError
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sharing.remote_folder import Place, open_place
from tests.helpers.commands import invoke
from tests.helpers.messages import naming


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answers with the status that the path names."""
        self.send_response(int(Path(self.path).parts[1]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose files all have length 0. Their path determines whether they exist."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/set", "s3://bucket/set"),
        ("s3:bucket/set", "s3://bucket/set"),
        ("gs:/bucket", "gs://bucket"),
        ("hf:/datasets/a/b", "hf://datasets/a/b"),
        ("https:/host/set", "https://host/set"),
        ("file:/srv/set", "file:///srv/set"),
    ],
)
def test_a_missing_slash_makes_no_folder(url: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=naming(f"{url}: ", meant, f"./{url}")):
        open_place(url)


def test_a_colon_in_a_folder_is_no_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sets:new", "./s3:new", "s3:"):
        assert open_place(name).root == str(tmp_path / name)


def test_a_file_that_is_not_there_is_told_from_a_server_that_is_not_well(url: str, tmp_path: Path) -> None:
    gone = open_place(f"{url}/404/set")
    assert gone.read("distill.json", 9) is None
    with pytest.raises(IntegrityError, match=r"404/set/distill\.json: "):
        gone.fetch("distill.json", tmp_path / "file", 9)
    _passes(open_place(f"{url}/503/set"), "503", tmp_path)
    _passes(open_place(f"{url}/429/set"), "429", tmp_path)
    _passes(open_place("http://127.0.0.1:9/set"), "Cannot connect", tmp_path)


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_read_a_set_is_told_so(status: int, url: str, tmp_path: Path) -> None:
    told = invoke("pull", f"{url}/{status}/set", "--store", tmp_path)
    assert told.exit_code == 2
    message = " ".join(told.stderr.split())
    assert f"{url}/{status}/set: " in message
    assert f"{status}" in message
    place = open_place(f"{url}/{status}/set")
    with pytest.raises(DataError, match=naming(f"{place.url}: ", status)):
        place.sizes("examples")
    with pytest.raises(DataError, match=naming(f"{place.url}: ", status)):
        place.fetch("distill.json", tmp_path / "file", 9)


def test_a_set_comes_from_a_server_that_lists_its_files(opinion_set: ExampleSet, tmp_path: Path) -> None:
    """Its pages list the files without sizes."""
    handler = partial(_Quiet, directory=str(opinion_set.root.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        told = invoke("pull", f"http://127.0.0.1:{server.server_address[1]}/opinion", "--store", tmp_path)
        server.shutdown()
    assert told.exit_code == 0, told.stderr
    assert ExampleSet.open(tmp_path / "opinion").record == opinion_set.record


def _passes(place: Place, reason: str, folder: Path) -> None:
    message = naming(f"{place.url}: ", reason)
    with pytest.raises(PassingError, match=message):
        place.read("distill.json", 9)
    with pytest.raises(PassingError, match=message):
        place.sizes("examples")
    with pytest.raises(PassingError, match=message):
        place.fetch("distill.json", folder / "file", 9)
