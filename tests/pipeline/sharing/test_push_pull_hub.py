"""Sets on the hub, by the real client in a process of its own: it reads the hub's address when it is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.sets.kinds.examples import ExampleSet
from pipeline.sets.record import FILE_NAME
from tests.helpers.hub_server import Hub
from tests.helpers.places import contents
from tests.helpers.rewritten_shards import rewrite_logit

URL = "hf://datasets/me/opinion"
WORKER = """
import json, sys
from typer.testing import CliRunner
from distill.commands import app
for line in sys.stdin:
    result = CliRunner().invoke(app, json.loads(line))
    print(json.dumps([result.exit_code, result.stdout, result.stderr, repr(result.exception)]), flush=True)
"""
Distill = Callable[..., Any]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with Hub() as server:
        yield server
        server.shutdown()


@pytest.fixture
def hub(server: Hub) -> Hub:
    """The hub, empty."""
    server.reset()
    return server


@pytest.fixture(scope="module")
def distill(server: Hub) -> Iterator[Distill]:
    """Runs a command in a process with the hub's address. Returns its JSON, or its message if it has to fail."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=environment(server.url),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        commands, answers = process.stdin, process.stdout

        def run(*arguments: object, fails: bool = False) -> Any:
            print(json.dumps([*map(str, arguments), "--json"]), file=commands, flush=True)
            code, out, error, exception = json.loads(answers.readline())
            assert code == (2 if fails else 0), f"{error} {exception}"
            return " ".join(error.split()) if fails else json.loads(out)

        yield run
        commands.close()


def environment(url: str) -> dict[str, str]:
    own = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "x"}
    return os.environ | own


def test_a_set_goes_to_the_hub_and_back(own_set: ExampleSet, hub: Hub, distill: Distill, tmp_path: Path) -> None:
    files = contents(own_set.root)
    assert set(distill("push", own_set.root, URL)["sent"]) == files.keys() - {FILE_NAME}
    first = hub.repos["me/opinion"].branches["main"]
    assert hub.repos["me/opinion"].private
    assert hub.files("me/opinion").items() >= files.items()
    pulled = distill("pull", URL, "--store", tmp_path / "store")
    assert contents(Path(pulled["root"])) == files
    hub.log.clear()
    distill("push", own_set.root, URL)
    assert hub.uploads() == []
    assert max(size for _, _, size in hub.log) < 100_000
    path = rewrite_logit(own_set)
    distill("push", own_set.root, URL)
    assert len(hub.uploads()) == 1
    assert distill("pull", f"{URL}@{first}", "--store", tmp_path / "old")
    assert contents(tmp_path / "old" / "opinion") == files
    assert path in distill("pull", URL, "--store", tmp_path / "store")["fetched"]
    assert contents(tmp_path / "store" / "opinion") == contents(own_set.root)


def test_all_of_a_pull_is_of_one_commit(opinion_set: ExampleSet, hub: Hub, distill: Distill, tmp_path: Path) -> None:
    distill("push", opinion_set.root, URL)
    hub.log.clear()
    distill("pull", URL, "--store", tmp_path)
    sha = hub.repos["me/opinion"].branches["main"]
    read = [path for _, path, _ in hub.log if "/resolve/" in path or "/tree/" in path]
    assert read
    assert all(f"/{sha}" in path for path in read)


def test_a_branch_of_its_own_and_everybody_may_look(
    opinion_set: ExampleSet, hub: Hub, distill: Distill, tmp_path: Path
) -> None:
    distill("push", opinion_set.root, f"{URL}@second/try", "--public")
    repo = hub.repos["me/opinion"]
    assert not repo.private
    assert FILE_NAME not in hub.files("me/opinion")
    assert hub.files("me/opinion", "second/try").items() >= contents(opinion_set.root).items()
    distill("pull", f"{URL}@second/try", "--store", tmp_path)
    assert contents(tmp_path / "opinion") == contents(opinion_set.root)


def test_another_set_is_replaced_only_on_demand(
    opinion_set: ExampleSet, augmented_set: ExampleSet, hub: Hub, distill: Distill
) -> None:
    distill("push", augmented_set.root, URL)
    message = distill("push", opinion_set.root, URL, fails=True)
    assert all(part in message for part in (f"{URL}: ", "'opinion-mask-pos'", "--replace"))
    distill("push", opinion_set.root, URL, "--replace")
    files = hub.files("me/opinion")
    assert {name: files[name] for name in files if name != ".gitattributes"} == contents(opinion_set.root)


def test_an_upload_that_fails_is_one_message_and_changes_nothing(
    opinion_set: ExampleSet, hub: Hub, distill: Distill
) -> None:
    hub.refused = "/lfs/"
    refused = distill("push", opinion_set.root, URL, fails=True)
    assert f"{URL}: " in refused
    assert "403" in refused
    assert FILE_NAME not in hub.files("me/opinion")
    kept = opinion_set.record.shards[0].sha256 or ""
    hub.refused = f"/lfs/{kept}"
    distill("push", opinion_set.root, URL, fails=True)
    arrived = set(hub.objects)
    hub.refused = None
    hub.log.clear()
    distill("push", opinion_set.root, URL)
    assert {path.removeprefix("/lfs/") for path in hub.uploads()} == set(hub.objects) - arrived
    assert hub.files("me/opinion").items() >= contents(opinion_set.root).items()


@pytest.mark.parametrize(
    "url",
    ["hf://datasets/me/nothing", "hf://datasets/me/opinion@nowhere", "hf://datasets/me--x/a..b", "hf://datasets/me"],
)
def test_nothing_there_is_one_message(
    opinion_set: ExampleSet, hub: Hub, distill: Distill, tmp_path: Path, url: str
) -> None:
    distill("push", opinion_set.root, URL)
    assert f"{url}: " in distill("pull", url, "--store", tmp_path, fails=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["push", "pull"])
def test_no_hub_is_one_message(opinion_set: ExampleSet, tmp_path: Path, command: str) -> None:
    arguments = [opinion_set.root, URL] if command == "push" else [URL, "--store", tmp_path]
    result = subprocess.run(
        [sys.executable, "-m", "distill", command, *map(str, arguments)],
        env=environment("http://127.0.0.1:9"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, "Traceback" in result.stderr) == (75, False)
    assert f"error: {URL}: " in " ".join(result.stderr.split())
