"""A server behind a cascade that answers, or misbehaves, in one way."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

Reply = Callable[[dict[str, Any]], Any]
Sent = list[tuple[str, dict[str, Any]]]


def http(values: Any, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer: JSON with a status line and headers."""
    body = json.dumps(values).encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def scores(good: float, bad: float, count: int) -> list[list[dict[str, Any]]]:
    """Scores of two labels for each input, the last label of the task first, as a server that ranks them may answer."""
    return [[{"label": "good", "score": good}, {"label": "bad", "score": bad}] for _ in range(count)]


@contextmanager
def odd_server(reply: Reply) -> Iterator[tuple[str, Sent]]:
    """A server at a free port. ``reply`` returns bytes to send as they are, an iterator of them, or JSON.

    Yields: its URL, and the head and body of each request so far.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    sent: Sent = []

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            while len(body) < int(lengths[0].split(b":")[1]):
                body += connection.recv(65536)
            sent.append((head.decode(), json.loads(body)))
            answered = reply(sent[-1][1])
            if isinstance(answered, bytes):
                connection.sendall(answered)
            elif isinstance(answered, Iterator):
                for piece in answered:
                    connection.sendall(piece)
                    time.sleep(0.05)
            else:
                connection.sendall(http(answered))

    def serve() -> None:
        with suppress(OSError):
            while True:
                Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
