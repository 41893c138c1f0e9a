"""A server beside what it is made of: ``python -m tests.benchmarks.serving [RUN]``.

Sentences of requests of 1,024 beside `Predictor.logits` of the same; single requests of 64 clients at a time beside an
application that answers all with the same few bytes: by the time of the processor that the server took, so that it does
not matter what else the machine does. Then how long a lone request takes beside a call, by the clock on the wall.
All by turns, on a core each, with a student of the default size unless a run is given.
"""

import gc
import json
import os
import selectors
import signal
import socket
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.app import App
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.served import Served
from distill.apps.serve.server import server_of
from pipeline import console
from student.predict.predictor import Predictor
from tests.benchmarks.random_student import write_random_student
from tests.benchmarks.tokenization import lines_of_documentation, taught_tokenizer

ROUNDS, LARGE, CLIENTS, EACH, LONE = 5, 1024, 64, 10, 200

Address = tuple[int, int]  # a process and its port


async def echo(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
    """Reads a request, and answers as many bytes as a student would."""
    while (await receive()).get("more_body"):
        pass
    body = b'[{"score":0.8757356405258179,"label":"yes"},{"score":0.12426432967185974,"label":"no"}]'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: Any) -> Iterator[tuple[int, int]]:
    """A server in a process of its own, and its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    process = os.fork()
    if not process:
        server_of(app).run(sockets=[listener])
        os._exit(0)
    yield process, listener.getsockname()[1]
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def request(inputs: object) -> bytes:
    """A question as it goes over the network."""
    body = json.dumps({"inputs": inputs}).encode()
    return b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def read_answer(connection: socket.socket) -> None:
    """Waits until all of an answer is there."""
    data, missing = b"", 1
    while missing > 0:
        data += connection.recv(1 << 20)
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            assert head.startswith(b"HTTP/1.1 200"), head
            missing = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) - len(body)


def crowd(port: int, requests: list[bytes]) -> None:
    """Requests of many clients, who each wait for their answer before they ask again.

    They take less time than the server, which would have to wait for them otherwise.
    """
    waiting = requests[::-1]
    with selectors.DefaultSelector() as selector:
        for _ in range(CLIENTS):
            connection = socket.create_connection(("127.0.0.1", port))
            selector.register(connection, selectors.EVENT_READ, connection)
            connection.sendall(waiting.pop())
        while selector.get_map():
            for key, _ in selector.select():
                read_answer(key.data)
                if waiting:
                    key.data.sendall(waiting.pop())
                else:
                    selector.unregister(key.data)
                    key.data.close()


def measure(predictor: Predictor, texts: list[str], server: Address, other: Address) -> dict[str, list[float]]:
    """What was measured in each round, by name; other is the echo."""
    single, large = [request(text) for text in texts[: CLIENTS * EACH]], request([[text] for text in texts])
    figures: dict[str, list[float]] = {}

    @contextmanager
    def noted(name: str, count: int, clock: Callable[[], float]) -> Iterator[None]:
        started = clock()
        yield
        figures.setdefault(name, []).append(1e6 * (clock() - started) / count)

    with socket.create_connection(("127.0.0.1", server[1])) as connection:

        def ask(question: bytes) -> None:
            connection.sendall(question)
            read_answer(connection)

        for _ in range(ROUNDS):
            with noted("logits of 1,024, a sentence", LARGE, time.process_time):
                predictor.logits(texts)
            with noted("a request of 1,024, a sentence", LARGE, partial(cpu_seconds, server[0])):
                ask(large)
            with noted("echo, 64 at a time, a request", len(single), partial(cpu_seconds, other[0])):
                crowd(other[1], single)
            with noted("64 at a time, a request", len(single), partial(cpu_seconds, server[0])):
                crowd(server[1], single)
        for text, question in zip(texts[:LONE], single, strict=False):
            with noted("logits of one, on the wall", 1, time.perf_counter):
                predictor.logits([text])
            with noted("a lone request, on the wall", 1, time.perf_counter):
                ask(question)
    return figures


def cpu_seconds(process: int) -> float:
    """What a process has had of the processor, with all its threads."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    """Measures, and prints medians and ratios."""
    torch.set_num_threads(1)
    lines = lines_of_documentation()
    with TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if sys.argv[1:] else Path(folder)
        if not sys.argv[1:]:
            write_random_student(run, taught_tokenizer(lines))
        predictor, metrics = Predictor(run), Metrics(1)
        app = App({"run": Served(run, metrics)}, ServeSettings(runs=("run",)), metrics)
    gc.freeze()  # as the server does
    with serving(app) as server, serving(echo) as other:
        figures = measure(predictor, lines[:LARGE], server, other)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    worst = {name: float(np.percentile(values, 99)) for name, values in figures.items()}
    rows = [[name, median, worst[name]] for name, median in medians.items()]
    console.print_table(["microseconds", "median", "99th percentile"], rows)
    logits, large, echoed, crowded, one, lone = medians.values()
    ratios = {"a request of 1,024, of logits": logits / large, "64 at a time, of the echo": echoed / crowded}
    ratios |= {"a lone request, in calls": lone / one, "the same, 99th percentile": [*worst.values()][-1] / one}
    console.print_pairs("beside what it is made of", ratios)


if __name__ == "__main__":
    main()
