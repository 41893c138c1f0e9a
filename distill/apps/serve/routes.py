"""What is answered to each question. Shapes: N texts, F features of the representation."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np

from distill.apps.serve.answers import Ranking, rankings
from distill.apps.serve.batches import Batches, R
from distill.apps.serve.config import ServeConfig
from distill.apps.serve.http import RefusedError, Reply
from distill.apps.serve.questions import (
    EmbedQuestion,
    HubParameters,
    HubQuestion,
    PredictQuestion,
    Question,
    Texts,
    checked_texts,
)
from distill.apps.serve.served import Served
from pipeline.arrays import Floats, Ints
from pipeline.errors import DistillError

Route = Callable[[Served, ServeConfig, Any], Awaitable[Reply]]


async def predict(served: Served, config: ServeConfig, question: PredictQuestion) -> Reply:
    """Labels by their scores, as text-embeddings-inference gives them: of a batch a list of lists."""
    texts = checked_texts(question.rows(), served.config.is_pair, config.max_client_batch_size)
    batches = served.rankings["none" if question.raw_scores else "softmax"]
    ranked = await _rows(served, batches, texts, question.truncate)
    return Reply((_lists(ranked) if question.is_batch else _list(ranked[0])).encode())


async def embed(served: Served, config: ServeConfig, question: EmbedQuestion) -> Reply:
    """The representation of each text."""
    texts = checked_texts(question.rows(), False, config.max_client_batch_size)
    vectors_NF = await _rows(served, served.vectors, texts, question.truncate)
    if question.normalize is not False:
        vectors_NF = vectors_NF / np.linalg.norm(vectors_NF, axis=1, keepdims=True).clip(min=1e-12)
    return await asyncio.to_thread(_vectors_as_json, vectors_NF)


async def hub(served: Served, config: ServeConfig, question: HubQuestion) -> Reply:
    """The same as the hub's inference API gives it: always a list of lists, of which its client takes the first."""
    texts = checked_texts(question.rows(), served.config.is_pair, config.max_client_batch_size)
    asked = question.parameters or HubParameters()
    ranked = await _rows(served, served.rankings[asked.function_to_apply or "softmax"], texts, None)
    return Reply(_lists(one[: asked.top_k] for one in ranked).encode())


async def teacher(served: Served, config: ServeConfig, question: PredictQuestion) -> Reply:
    """What the teacher said of each input when the set was made; null for what it was not asked about."""
    texts = checked_texts(question.rows(), served.config.is_pair, config.max_client_batch_size)
    found = served.stored.find(texts) if served.stored else [None] * len(texts)
    target = served.config.target
    told = ("null" if logits_C is None else _list(rankings(target, logits_C[None])[0]) for logits_C in found)
    return Reply(_list(told).encode())


POST: dict[str, tuple[type[Question], Route]] = {
    "/": (HubQuestion, hub),
    "/predict": (PredictQuestion, predict),
    "/embed": (EmbedQuestion, embed),
    "/teacher": (PredictQuestion, teacher),
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


def _vectors_as_json(vectors_NF: Floats) -> Reply:
    """Row by row, so that other requests go on meanwhile."""
    if not np.isfinite(vectors_NF).all():
        raise RefusedError(424, "Backend", "score is NaN")
    rows = (json.dumps(row, separators=(",", ":")) for row in vectors_NF.tolist())
    return Reply(_list(rows).encode())
