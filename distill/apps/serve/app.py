"""The ASGI application: the endpoints, their limits of size, time and concurrency, and the OpenAPI description.

Shapes: N texts, F features of the representation.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.metadata import version
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from distill.apps.app_settings import ServeSettings
from distill.apps.serve.drift import drift_text
from distill.apps.serve.prometheus import Metrics
from distill.apps.serve.requests import (
    ENCODER,
    Body,
    EmbedRequest,
    HubParameters,
    HubRequest,
    PredictRequest,
    RefusedError,
    TasksRequest,
    Texts,
    checked_texts,
    parsed,
)
from distill.apps.serve.served import Ranking, Served, rankings
from pipeline.arrays import Floats, Ints
from pipeline.errors import DistillError, did_you_mean
from student.page import compose, hashes

Answer = Callable[[Served, ServeSettings, Any], Awaitable[bytes]]
REF = "#/components/schemas/{model}"
TEXT = {"text/plain": {"schema": {"type": "string"}}}
PREDICTION = {
    "type": "object",
    "required": ["score", "label"],
    "properties": {"score": {"type": "number"}, "label": {"type": "string"}},
}
ERROR = {
    "type": "object",
    "required": ["error", "error_type"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}
RANKING = {"type": "array", "items": {"$ref": REF.format(model="Prediction")}}
WORDS = {
    "type": "object",
    "required": ["words", "spans"],
    "properties": {name: {"type": "array", "items": {"type": "object"}} for name in ("words", "spans")},
}
RANKINGS = {"type": "array", "items": RANKING}
BY_TASK = {"type": "object", "additionalProperties": RANKING}
ANSWERS: dict[str, dict[str, Any]] = {
    "/": RANKINGS,
    "/predict": {"oneOf": [RANKING, RANKINGS, WORDS, {"type": "array", "items": WORDS}]},
    "/tasks": {"oneOf": [BY_TASK, {"type": "array", "items": BY_TASK}]},
    "/embed": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "/teacher": {"type": "array", "items": {"oneOf": [RANKING, {"type": "null"}]}},
}
SUMMARIES = {
    "/": "Labels of texts, in the form of the hub's inference API",
    "/predict": "Labels of texts, in the form of text-embeddings-inference",
    "/tasks": "Labels of texts by task, from all students that share an encoder",
    "/embed": "Representations of texts",
    "/teacher": "The teacher's stored predictions",
}
REFUSALS = {
    400: "No JSON, or no inputs",
    408: "The request did not arrive in time",
    413: "Too long, or too many inputs",
    422: "A field has a wrong type or value",
    424: "The student cannot read it",
    429: "Too many concurrent requests",
}
GET = {
    "/health": ("Whether the server is healthy", TEXT),
    "/ping": ("The same", TEXT),
    "/info": ("The model and its limits", {"application/json": {"schema": {"type": "object"}}}),
    "/metrics": ("Numbers for Prometheus", TEXT),
    "/runs": (
        "The students. Each is also available under /runs/NAME",
        {"application/json": {"schema": {"type": "array"}}},
    ),
    "/openapi.json": ("This description", {"application/json": {"schema": {"type": "object"}}}),
}


T = TypeVar("T")


async def predict(served: Served, config: ServeSettings, body: PredictRequest) -> bytes:
    """Returns labels with their scores in the form of text-embeddings-inference: a list of lists for a batch.

    A student of words returns the words and spans of each text as `distill predict --json` does.
    """
    texts = checked_texts(body, served.student.is_pair, config.max_client_batch_size)
    if served.student.labels_words:
        if body.raw_scores:
            raise RefusedError(422, "Validation", "`raw_scores`: this student labels words. Leave it out")
        labelled = await _rows(served, served.words.submit, texts, None)  # long texts are read whole
        return (_list(labelled) if body.is_batch else labelled[0]).encode()
    batches = served.rankings["none" if body.raw_scores else "softmax"]
    ranked = await _rows(served, batches.submit, texts, body.truncate)
    return (_lists(ranked) if body.is_batch else _list(ranked[0])).encode()


async def tasks(served: Served, config: ServeSettings, body: TasksRequest) -> bytes:
    """Returns by task what `predict` returns, for all students with this one's encoder. Each text is read once."""
    rows = body.rows()
    is_pair = bool(rows) and len(rows[0]) == 2
    texts = checked_texts(body, is_pair, config.max_client_batch_size)
    names = served.tasks.chosen(body.tasks, is_pair)
    submit = served.tasks.submit("none" if body.raw_scores else "softmax", is_pair)
    # All of them have the same limit of tokens, since they read by one encoder.
    answers = await _rows(served.tasks.students[names[0]], submit, texts, body.truncate)
    written = [_object({name: _list(row[name]) for name in names}) for row in answers]
    return (_list(written) if body.is_batch else written[0]).encode()


async def embed(served: Served, config: ServeSettings, body: EmbedRequest) -> bytes:
    """Returns the vector of each text."""
    texts = checked_texts(body, False, config.max_client_batch_size)
    vectors_NF = await _rows(served, served.vectors.submit, texts, body.truncate)
    if body.normalize is not False:
        vectors_NF = vectors_NF / np.linalg.norm(vectors_NF, axis=1, keepdims=True).clip(min=1e-12)
    # A batch of vectors takes some 100 ms to format, which would block the event loop for all other requests.
    return await asyncio.to_thread(_vectors_as_json, vectors_NF)


async def hub(served: Served, config: ServeSettings, body: HubRequest) -> bytes:
    """Returns labels in the form of the hub's inference API: always a list of lists, as its client expects."""
    texts = checked_texts(body, served.student.is_pair, config.max_client_batch_size)
    wanted = body.parameters or HubParameters()
    ranked = await _rows(served, served.rankings[wanted.function_to_apply or "softmax"].submit, texts, None)
    return _lists(one[: wanted.top_k] for one in ranked).encode()


async def teacher(served: Served, config: ServeSettings, body: PredictRequest) -> bytes:
    """The teacher's stored prediction for each input. Null for inputs that are not in the set."""
    texts = checked_texts(body, served.student.is_pair, config.max_client_batch_size)
    found = served.stored.find(texts) if served.stored else [None] * len(texts)
    target = served.student.target
    answers = ("null" if logits_C is None else _list(rankings(target, logits_C[None])[0]) for logits_C in found)
    return _list(answers).encode()


POST: dict[str, tuple[type[Body], Answer]] = {
    "/": (HubRequest, hub),
    "/predict": (PredictRequest, predict),
    "/tasks": (TasksRequest, tasks),
    "/embed": (EmbedRequest, embed),
    "/teacher": (PredictRequest, teacher),
}


async def _rows(served: Served, submit: Callable[[Texts], Awaitable[T]], texts: Texts, truncate: bool | None) -> T:
    """Returns the student's answer to texts. Long texts are truncated, or refused if the client forbids truncation."""
    try:
        if truncate is False:
            _check_lengths(await served.lengths.submit(texts), served.student.max_seq_length)
        return await submit(texts)
    except TimeoutError as error:
        raise RefusedError(429, "Overloaded", "Model is overloaded") from error
    except DistillError as error:
        raise RefusedError(424, "Backend", str(error)) from error


def _check_lengths(tokens_N: Ints, most: int) -> None:
    if tokens_N.max() > most:
        message = f"`inputs` must have at most {most} tokens. Given: {tokens_N.max()}"
        raise RefusedError(413, "Validation", f"Input validation error: {message}")


def _lists(rankings: Iterable[Ranking]) -> str:
    return _list(map(_list, rankings))


def _object(values: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{ENCODER.encode(name)}:{value}' for name, value in values.items())}}}"


def _list(parts: Iterable[str]) -> str:
    return f"[{','.join(parts)}]"


def _vectors_as_json(vectors_NF: Floats) -> bytes:
    """Formats row by row, so that Python can switch to other threads between rows."""
    if not np.isfinite(vectors_NF).all():
        raise RefusedError(424, "Backend", "score is NaN")
    rows = (json.dumps(row, separators=(",", ":")) for row in vectors_NF.tolist())
    return _list(rows).encode()


def document() -> dict[str, Any]:
    """Returns the description of the API in OpenAPI 3.1."""
    schemas: dict[str, Any] = {"Prediction": PREDICTION, "Error": ERROR}
    paths: dict[str, Any] = {
        path: {"get": {"summary": summary, "responses": {"200": {"description": summary, "content": content}}}}
        for path, (summary, content) in GET.items()
    }
    for path, (kind, _) in POST.items():
        schema = kind.model_json_schema(ref_template=REF)
        schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
        paths.setdefault(path, {})["post"] = _operation(path, kind.__name__)
    info = {"title": "distill serve", "version": version("distill-offline")}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(path: str, kind: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REF.format(model="Error")}}}
    refusals = {str(status): {"description": text, "content": content} for status, text in REFUSALS.items()}
    answer = {"description": SUMMARIES[path], "content": {"application/json": {"schema": ANSWERS[path]}}}
    return {
        "summary": SUMMARIES[path],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": REF.format(model=kind)}}},
        },
        "responses": {"200": answer} | refusals,
    }


RUNS, NAME = "/runs", "/runs/{name}"
BODY_SECONDS = 30
FOOTER = 'Texts go to this server and nowhere else. For programs: <a href="openapi.json">the API</a>.'


class App:
    """Students behind HTTP.

    Args:
        runs: the students by their names. The first one also answers requests without a name.
        config: the limits.
        metrics: the counters.
    """

    def __init__(self, runs: Mapping[str, Served], config: ServeSettings, metrics: Metrics) -> None:
        self._runs, self._config, self._metrics = runs, config, metrics
        self._at_work = 0
        # Each response names the weights that made it, so that logs of a rollout distinguish models.
        self._versions = {
            one.name: {"x-model-sha": one.sha256, "x-distill-version": version("distill-offline")}
            for one in runs.values()
        }
        self._page, description = page(), ENCODER.encode(document()).encode()
        self._get: dict[str, Callable[[Served], Response]] = {
            "/health": lambda served: _plain(),
            "/ping": lambda served: _plain(),
            "/info": lambda served: _json(ENCODER.encode(served.info(config)).encode()),
            "/metrics": lambda served: _plain(self._metrics_text(), "text/plain; version=0.0.4"),
            "/openapi.json": lambda served: _json(description),
            RUNS: lambda _: _json(ENCODER.encode([one.summary(config) for one in runs.values()]).encode()),
        }
        # The most frequent routes come first, because Starlette tries one route after another.
        endpoints = [("POST", path, self._answering(*POST[path])) for path in POST]
        endpoints += [("GET", path, self._getting(reply)) for path, reply in self._get.items()]
        endpoints.append(("GET", "/", self._front))
        routes = [
            Route(place, endpoint, methods=[method])
            for method, path, endpoint in endpoints
            for place in (path, NAME + path, *([NAME] if path == "/" else []))
        ]
        handlers: dict[Any, Any] = {RefusedError: self._refused, HTTPException: self._not_there}
        self._starlette = Starlette(routes=routes, middleware=_cors(config), exception_handlers=handlers)
        # Clients get our 404 with a suggestion, not a redirect, which many of them do not follow for a POST.
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request. It counts as running until its answer is sent."""
        is_work = scope["method"] == "POST"
        self._at_work += is_work
        try:
            await self._starlette(scope, receive, send)
        finally:
            self._at_work -= is_work

    def _served(self, request: Request) -> Served:
        """Returns the student that the path names, or the first one."""
        name = request.path_params.get("name", next(iter(self._runs)))
        if name not in self._runs:
            raise self._no_run(name)
        return self._runs[name]

    def _metrics_text(self) -> str:
        watched = [one.recent for one in self._runs.values() if one.recent is not None]
        return self._metrics.text() + drift_text(watched)

    def _answering(self, kind: type[Body], answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            served = self._served(request)
            # Refusing early keeps waiting times bounded. An ever longer queue would make every client time out.
            if self._at_work > self._config.max_concurrent_requests:
                raise RefusedError(429, "Overloaded", "Model is overloaded")
            started = time.perf_counter()
            try:
                if served.student.labels_words and answer is not predict:
                    raise RefusedError(422, "Validation", f"{served.name!r} labels words, which only /predict returns")
                body = parsed(kind, await read_body(request, self._config.payload_limit))
                label = f'{{method="{"batch" if body.is_batch else "single"}"}}'
                self._metrics.add(f"te_request_count{label}")
                content = await answer(served, self._config, body)
                self._metrics.add(f"te_request_success{label}")
                return _json(content, headers=self._versions[served.name])
            finally:
                self._metrics.observe("te_request_duration", time.perf_counter() - started)

        return endpoint

    def _getting(self, reply: Callable[[Served], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return reply(self._served(request))

        return endpoint

    async def _front(self, request: Request) -> Response:
        """Returns the page for people, which also serves as a health check."""
        name = self._served(request).name  # answers 404 for an unknown run
        if "text/html" not in request.headers.get("accept", ""):
            return _plain()
        return RedirectResponse(f"../#{quote(name)}") if "name" in request.path_params else self._page

    async def _refused(self, _: Request, error: RefusedError) -> Response:
        """Answers with an error and closes the connection, because the rest of the request may still arrive."""
        self._metrics.add(f'te_request_failure{{err="{error.kind.lower()}"}}')
        content = json.dumps({"error": str(error), "error_type": error.kind}).encode()
        return _json(content, error.status, {**error.headers, "connection": "close"})

    async def _not_there(self, request: Request, _: HTTPException) -> Response:
        """Answers requests without a route: with a wrong method or a wrong path."""
        return await self._refused(request, self._nothing_at(request.scope["path"]))

    def _nothing_at(self, path: str) -> RefusedError:
        if path.startswith(f"{RUNS}/"):
            name, _, rest = path.removeprefix(f"{RUNS}/").partition("/")
            if name not in self._runs:
                return self._no_run(name)
            path = f"/{rest}"
        allowed = [name for name, paths in (("GET", {"/", *self._get}), ("POST", POST)) if path in paths]
        if allowed:
            message = f"{path} takes {' or '.join(allowed)}"
            return RefusedError(405, "Validation", message, {"allow": ", ".join(allowed)})
        return RefusedError(404, "Validation", f"no {path[:100]!r}. {did_you_mean(path[:100], {*self._get, *POST})}")

    def _no_run(self, name: str) -> RefusedError:
        return RefusedError(404, "Validation", f"no run {name[:100]!r}. {did_you_mean(name[:100], self._runs)}")


def _cors(config: ServeSettings) -> list[Middleware]:
    """Headers that allow requests from pages of other origins. Browsers need them for responses and errors alike."""
    if not config.cors_allow_origin:
        return []
    origins = list(config.cors_allow_origin)
    return [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])]


async def read_body(request: Request, limit: int) -> bytes:
    """Returns the body of a request.

    Raises:
        RefusedError: if it has more than ``limit`` bytes, or does not arrive in time.
    """
    too_large = RefusedError(413, "Validation", f"the request has more than {limit:,} bytes. Send several smaller ones")
    length = request.headers.get("content-length", "")
    # Truncated before the conversion, because int() raises an error for more than 4,300 digits.
    if length.isdigit() and int(length[:20]) > limit:
        raise too_large
    body = bytearray()
    try:
        # Slow clients (Slowloris) could otherwise hold all permitted requests open with a byte now and then.
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                # Counted while reading, because the header may be missing or wrong.
                body += part
                if len(body) > limit:
                    raise too_large
    except ClientDisconnect as error:
        raise RefusedError(408, "Validation", "the connection ended before the request did") from error
    except TimeoutError as error:
        raise RefusedError(408, "Validation", f"the request took longer than {BODY_SECONDS} s to arrive") from error
    return bytes(body)


def page() -> Response:
    """Returns the page for people. Its headers allow only its own script and style, and requests to this server."""
    backend = files("distill.apps.serve").joinpath("server.js").read_text(encoding="utf-8")
    html = compose("distill serve", backend, FOOTER)
    policy = {
        # Everything that is not listed below is forbidden, so that injected markup can neither run nor send anything.
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "style-src": hashes(html, "style"),
        "script-src": hashes(html, "script"),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "vary": "accept",
    }
    return Response(html, headers=headers, media_type="text/html")


def _plain(text: str = "", kind: str = "text/plain") -> Response:
    return Response(text, headers={"content-type": kind})


def _json(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")
