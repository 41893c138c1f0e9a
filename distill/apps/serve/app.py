"""The ASGI application: which path is answered by what."""

import time
from collections.abc import Callable, Mapping

from distill.apps.serve.config import ServeConfig
from distill.apps.serve.http import (
    Receive,
    RefusedError,
    Reply,
    Scope,
    Send,
    as_json,
    header,
    read_body,
    refusal,
    send_reply,
)
from distill.apps.serve.metrics import Metrics
from distill.apps.serve.openapi import document
from distill.apps.serve.page import page
from distill.apps.serve.questions import parsed
from distill.apps.serve.routes import POST
from distill.apps.serve.served import Served
from pipeline.errors import did_you_mean

RUNS = "/runs"
HEALTHY = Reply(b"", "text/plain")


class App:
    """Students behind HTTP.

    Args:
        runs: the students by their names; the first one also answers where no name is given.
        config: the limits.
        metrics: what is counted.
    """

    def __init__(self, runs: Mapping[str, Served], config: ServeConfig, metrics: Metrics) -> None:
        self._runs, self._config, self._metrics = runs, config, metrics
        self._at_work = 0
        self._page, self._document = page(), as_json(document())
        self._get: dict[str, Callable[[Served], Reply]] = {
            "/health": lambda served: HEALTHY,
            "/ping": lambda served: HEALTHY,
            "/info": lambda served: as_json(served.info(config)),
            "/metrics": lambda served: Reply(metrics.text().encode(), "text/plain; version=0.0.4"),
            "/openapi.json": lambda served: self._document,
            RUNS: lambda _: as_json([one.summary(config) for one in runs.values()]),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        assert scope["type"] == "http", "uvicorn is told to hand over nothing else"
        is_question = scope["method"] == "POST"
        self._at_work += is_question
        try:
            await send_reply(send, await self._reply_or_refusal(scope, receive))
        finally:
            self._at_work -= is_question

    async def _reply_or_refusal(self, scope: Scope, receive: Receive) -> Reply:
        try:
            return await self._reply(scope, receive)
        except RefusedError as error:
            self._metrics.add(f'te_request_failure{{err="{error.kind.lower()}"}}')
            return refusal(error)

    async def _reply(self, scope: Scope, receive: Receive) -> Reply:
        served, path = self._asked(scope["path"])
        method = scope["method"].replace("HEAD", "GET")
        if method == "GET" and path == "/":
            is_for_people = scope["path"] == "/" and b"text/html" in header(scope, b"accept")
            return self._page if is_for_people else HEALTHY
        if method == "GET" and path in self._get:
            return self._get[path](served)
        if method == "POST" and path in POST:
            return await self._answer(served, path, scope, receive)
        raise self._nothing_there(path)

    def _asked(self, path: str) -> tuple[Served, str]:
        """Which student is asked, and what for."""
        if not path.startswith(f"{RUNS}/"):
            return next(iter(self._runs.values())), path
        name, _, rest = path.removeprefix(f"{RUNS}/").partition("/")
        if name not in self._runs:
            raise RefusedError(404, "Validation", f"no run {name[:100]!r}: {did_you_mean(name[:100], self._runs)}")
        return self._runs[name], f"/{rest}"

    async def _answer(self, served: Served, path: str, scope: Scope, receive: Receive) -> Reply:
        if self._at_work > self._config.max_concurrent_requests:
            raise RefusedError(429, "Overloaded", "Model is overloaded")
        started = time.perf_counter()
        try:
            kind, route = POST[path]
            question = parsed(kind, await read_body(scope, receive, self._config.payload_limit))
            label = f'{{method="{"batch" if question.is_batch else "single"}"}}'
            self._metrics.add(f"te_request_count{label}")
            reply = await route(served, self._config, question)
            self._metrics.add(f"te_request_success{label}")
            return reply
        finally:
            self._metrics.observe("te_request_duration", time.perf_counter() - started)

    def _nothing_there(self, path: str) -> RefusedError:
        allowed = [name for name, paths in (("GET", {"/", *self._get}), ("POST", POST)) if path in paths]
        if allowed:
            message = f"{path} takes {' or '.join(allowed)}"
            return RefusedError(405, "Validation", message, {"allow": ", ".join(allowed)})
        known = {*self._get, *POST}
        return RefusedError(404, "Validation", f"no {path[:100]!r}: {did_you_mean(path[:100], known)}")
