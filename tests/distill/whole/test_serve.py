import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from student.predict.predictor import Predictor
from tests.helpers.commands import invoke
from tests.helpers.server import serving, workers_of

pytest.importorskip("uvicorn")
TEXT, PAIR = "the food was lovely .", ("anna paid ben .", "ben was paid by anna .")
CLIENT = """
import json, sys
from huggingface_hub import InferenceClient
url, text = sys.argv[1:]
asked = InferenceClient(url).text_classification(text, top_k=2)
vector = InferenceClient(f"{url}/embed").feature_extraction(text)
print(json.dumps({"labels": {one.label: one.score for one in asked}, "shape": vector.shape}))
"""

Server = tuple[subprocess.Popen[str], str]


@pytest.fixture(scope="module")
def server(opinion_run: Path, roles_run: Path) -> Iterator[Server]:
    """Two workers that serve two students."""
    with serving(opinion_run, roles_run, "--workers", 2) as started:
        yield started


def post(url: str, path: str, inputs: object) -> Any:
    return json.loads(answered(url, "POST", path, json.dumps({"inputs": inputs}))[1])


def answered(url: str, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.slow
def test_the_hubs_own_client_understands_it(server: Server, opinion_run: Path) -> None:
    program = [sys.executable, "-c", CLIENT, server[1], TEXT]
    environment = os.environ | {"HF_HUB_OFFLINE": "0"}  # the server is not the hub, but the client takes it for that
    printed = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    told = json.loads(printed)
    (expected,) = Predictor(opinion_run)([TEXT])
    assert told["labels"] == pytest.approx(expected["probabilities"], abs=1e-6)
    assert told["shape"][0] == 1


@pytest.mark.slow
def test_workers_answer_alike_and_count_together(server: Server, roles_run: Path) -> None:
    (expected,) = Predictor(roles_run)(PAIR[:1], PAIR[1:])
    for _ in range(20):
        ranking = post(server[1], f"/runs/{roles_run.name}/predict", list(PAIR))
        assert {one["label"]: one["score"] for one in ranking} == pytest.approx(expected["probabilities"], abs=1e-6)
    told = {answered(server[1], "GET", "/metrics")[1] for _ in range(20)}  # of whichever worker
    (single,) = {line for text in told for line in text.splitlines() if line.startswith('te_request_success{method="s')}
    assert float(single.rsplit(" ", 1)[1]) >= 20


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(server: Server) -> None:
    process, url = server
    before = workers_of(process)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    while len(now := set(workers_of(process)) - {before[0]}) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    assert before[1] in now
    assert answered(url, "GET", "/health") == (200, "")


@pytest.mark.slow
def test_what_has_come_is_answered_before_it_ends(opinion_run: Path) -> None:
    with serving(opinion_run, "--workers", 2) as (process, url):
        body = json.dumps({"inputs": TEXT}).encode()
        head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as connection:
            connection.sendall(head + body[:5])
            time.sleep(0.5)  # the request has begun
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert process.poll() is None
            connection.sendall(body[5:])
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            answered(url, "GET", "/health")


def test_runs_that_are_not_there_are_named_at_once_with_those_that_are(opinion_run: Path, tmp_path: Path) -> None:
    shutil.copytree(opinion_run, tmp_path / "opinion")
    result = invoke("serve", tmp_path / "opinoin", tmp_path / "opinion", tmp_path / "x", opinion_run, opinion_run)
    assert result.exit_code == 2
    told = result.stderr.replace("\n", " ")
    assert "3 problems" in told
    assert "Did you mean 'opinion'?" in told
    assert f"{opinion_run.name!r}" in told


def test_an_address_that_is_taken_is_told_before_anything_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke("serve", tmp_path, "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "--port" in result.stderr


def test_without_the_extra_it_says_what_to_install(opinion_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    result = invoke("serve", opinion_run)
    assert result.exit_code == 2
    assert "'distill-offline[serve]'" in result.stderr
