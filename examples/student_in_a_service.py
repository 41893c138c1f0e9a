"""A student behind HTTP, with nothing but the standard library: ``python examples/student_in_a_service.py runs/mrpc``.

Asked by ``curl -d '{"sentences1": ["A man eats."], "sentences2": ["Somebody eats."]}' http://localhost:8000/``. Give it
many sentences at a time: what one costs alone is mostly the request. A lock keeps the requests apart, as torch uses all
cores for one of them already.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from distill import Predictor
from pipeline.errors import DistillError

MAX_BYTES = 2**20


def handler(predict: Predictor) -> type[BaseHTTPRequestHandler]:
    """The class that answers POST requests with a list of predictions, and mistakes with 400 and a message."""
    lock = Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                size = int(self.headers.get("Content-Length", 0))
                if size > MAX_BYTES:
                    raise ValueError(f"{size:,} bytes; at most {MAX_BYTES:,} are read")
                question = json.loads(self.rfile.read(size))
                sentences1, sentences2 = question["sentences1"], question.get("sentences2")
                if not all(_are_texts(sentences) for sentences in (sentences1, sentences2 or [])):
                    raise ValueError("sentences1 and sentences2 must be lists of strings")
                with lock:
                    self._answer(200, predict(sentences1, sentences2))
            except (DistillError, ValueError, KeyError, TypeError, AttributeError) as error:
                self._answer(400, {"error": f"{type(error).__name__}: {error}"})

        def _answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _are_texts(sentences: object) -> bool:
    return isinstance(sentences, list) and all(isinstance(sentence, str) for sentence in sentences)


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), handler(Predictor(arguments.run)))
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
