"""What each path answers, and its description for machines. Shapes: N texts, F features of the representation."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from typing import Any

import numpy as np

from distill.apps.config import ServeConfig
from distill.apps.serve.batches import Batches, R, Ranking
from distill.apps.serve.requests import (
    Body,
    EmbedRequest,
    HubParameters,
    HubRequest,
    PredictRequest,
    RefusedError,
    Texts,
    checked_texts,
)
from distill.apps.serve.served import Served, rankings
from pipeline.arrays import Floats, Ints
from pipeline.errors import DistillError

Answer = Callable[[Served, ServeConfig, Any], Awaitable[bytes]]
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
RANKINGS = {"type": "array", "items": RANKING}
ANSWERS: dict[str, dict[str, Any]] = {
    "/": RANKINGS,
    "/predict": {"oneOf": [RANKING, RANKINGS]},
    "/embed": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "/teacher": {"type": "array", "items": {"oneOf": [RANKING, {"type": "null"}]}},
}
SUMMARIES = {
    "/": "Labels of texts, as the hub's inference API gives them",
    "/predict": "Labels of texts, as text-embeddings-inference gives them",
    "/embed": "Representations of texts",
    "/teacher": "What the teacher said when its answers were stored",
}
REFUSALS = {
    400: "No JSON, or no inputs",
    408: "The request did not arrive in time",
    413: "Too long, or too many inputs",
    422: "Not what is asked for here",
    424: "The student cannot read it",
    429: "Too many requests at a time",
}
GET = {
    "/health": ("Whether it answers", TEXT),
    "/ping": ("The same", TEXT),
    "/info": ("The model and its limits", {"application/json": {"schema": {"type": "object"}}}),
    "/metrics": ("Numbers for Prometheus", TEXT),
    "/runs": ("The students; each answers under /runs/NAME, too", {"application/json": {"schema": {"type": "array"}}}),
    "/openapi.json": ("This description", {"application/json": {"schema": {"type": "object"}}}),
}


async def predict(served: Served, config: ServeConfig, body: PredictRequest) -> bytes:
    """Labels by their scores, as text-embeddings-inference gives them: of a batch a list of lists."""
    texts = checked_texts(body.rows(), served.config.is_pair, config.max_client_batch_size)
    batches = served.rankings["none" if body.raw_scores else "softmax"]
    ranked = await _rows(served, batches, texts, body.truncate)
    return (_lists(ranked) if body.is_batch else _list(ranked[0])).encode()


async def embed(served: Served, config: ServeConfig, body: EmbedRequest) -> bytes:
    """The representation of each text."""
    texts = checked_texts(body.rows(), False, config.max_client_batch_size)
    vectors_NF = await _rows(served, served.vectors, texts, body.truncate)
    if body.normalize is not False:
        vectors_NF = vectors_NF / np.linalg.norm(vectors_NF, axis=1, keepdims=True).clip(min=1e-12)
    return await asyncio.to_thread(_vectors_as_json, vectors_NF)


async def hub(served: Served, config: ServeConfig, body: HubRequest) -> bytes:
    """The same as the hub's inference API gives it: always a list of lists, of which its client takes the first."""
    texts = checked_texts(body.rows(), served.config.is_pair, config.max_client_batch_size)
    wanted = body.parameters or HubParameters()
    ranked = await _rows(served, served.rankings[wanted.function_to_apply or "softmax"], texts, None)
    return _lists(one[: wanted.top_k] for one in ranked).encode()


async def teacher(served: Served, config: ServeConfig, body: PredictRequest) -> bytes:
    """What the teacher said of each input when the set was made; null for what it was not asked about."""
    texts = checked_texts(body.rows(), served.config.is_pair, config.max_client_batch_size)
    found = served.stored.find(texts) if served.stored else [None] * len(texts)
    target = served.config.target
    answers = ("null" if logits_C is None else _list(rankings(target, logits_C[None])[0]) for logits_C in found)
    return _list(answers).encode()


POST: dict[str, tuple[type[Body], Answer]] = {
    "/": (HubRequest, hub),
    "/predict": (PredictRequest, predict),
    "/embed": (EmbedRequest, embed),
    "/teacher": (PredictRequest, teacher),
}


async def _rows(served: Served, batches: Batches[R], texts: Texts, truncate: bool | None) -> R:
    """The student's answer to texts, which are cut if they are too long, unless the client will not have it."""
    try:
        if truncate is False:
            _check_lengths(await served.lengths.ask(texts), served.config.max_seq_length)
        return await batches.ask(texts)
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


def _list(parts: Iterable[str]) -> str:
    return f"[{','.join(parts)}]"


def _vectors_as_json(vectors_NF: Floats) -> bytes:
    """Row by row, so that other requests go on meanwhile."""
    if not np.isfinite(vectors_NF).all():
        raise RefusedError(424, "Backend", "score is NaN")
    rows = (json.dumps(row, separators=(",", ":")) for row in vectors_NF.tolist())
    return _list(rows).encode()


def document() -> dict[str, Any]:
    """The whole description, OpenAPI 3.1."""
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
