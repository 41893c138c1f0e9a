"""A proxy before an HTTP server that does to some requests what networks do."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = ("cut", "lost", "repeated", "hangs", "busy")
BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on, and has faults by turns.

    - ``cut``: half of the answer arrives, then the connection ends; ``lost``: the request arrives, its answer does not;
    - ``repeated``: the server gets the request twice; ``busy``: it says that it has too much to do;
    - ``hangs``: neither an answer nor an end.

    Args:
        upstream: the server's address.
        every: each so many-th request has a fault.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: str, every: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.ended = threading.Event()
        self.requests = 0
        self._every = every
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self) -> str | None:
        """What the next request shall suffer."""
        with self._lock:
            self.requests += 1
            number, rest = divmod(self.requests, self._every)
        return None if rest else FAULTS[number % len(FAULTS)]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what is asked for here."""


@contextmanager
def faulty(upstream: str, every: int) -> Iterator[FaultyProxy]:
    """A `FaultyProxy` that serves until the block ends."""
    with FaultyProxy(upstream, every) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        yield proxy
        proxy.ended.set()
        proxy.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault()
        if fault == "hangs":
            self.server.ended.wait()
            self.close_connection = True
        elif fault == "busy":
            self._answer(503, [("Content-Type", "application/xml"), ("Content-Length", str(len(BUSY)))], BUSY)
        else:
            self._answer_of_server(body, fault)

    def _answer_of_server(self, body: bytes, fault: str | None) -> None:
        for _ in range(2 if fault == "repeated" else 1):
            connection = http.client.HTTPConnection(self.server.upstream)
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            content = response.read()
            connection.close()
        if fault == "lost":
            self.close_connection = True
            return
        headers = [item for item in response.getheaders() if item[0].lower() not in ("connection", "transfer-encoding")]
        if "content-length" not in {name.lower() for name, _ in headers}:
            headers.append(("Content-Length", str(len(content))))
        self._answer(response.status, headers, content[: len(content) // 2] if fault == "cut" else content)
        self.close_connection |= fault == "cut"

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        with suppress(OSError):
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""
