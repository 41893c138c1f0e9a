"""What is answered to each question. Shapes: N texts, F features of the representation."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from pipeline.arrays import Floats
from pipeline.errors import DistillError
from student.serve.answers import rankings
from student.serve.batches import Batches
from student.serve.config import ServeConfig
from student.serve.http import RefusedError, Reply, as_json
from student.serve.questions import EmbedQuestion, HubQuestion, PredictQuestion, Question, Texts, checked_texts
from student.serve.served import Served

ANSWER_SECONDS = 60

Route = Callable[[Served, ServeConfig, Any], Awaitable[Reply]]


async def predict(served: Served, config: ServeConfig, question: PredictQuestion) -> Reply:
    """Labels by their scores, as text-embeddings-inference gives them: of a batch a list of lists."""
    texts = checked_texts(question.rows(), served.config.is_pair, config.max_client_batch_size)
    logits_NC = await _rows(served, served.logits, texts, question.truncate)
    ranked = rankings(served.config.target, logits_NC, "none" if question.raw_scores else "softmax")
    return as_json(ranked if question.is_batch else ranked[0])


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
    logits_NC = await _rows(served, served.logits, texts, None)
    asked = question.parameters
    scale = (asked and asked.function_to_apply) or "softmax"
    ranked = rankings(served.config.target, logits_NC, scale)
    return as_json([one[: asked.top_k] for one in ranked] if asked else ranked)


async def teacher(served: Served, config: ServeConfig, question: PredictQuestion) -> Reply:
    """What the teacher said of each input when the set was made; null for what it was not asked about."""
    texts = checked_texts(question.rows(), served.config.is_pair, config.max_client_batch_size)
    found = served.stored.find(texts) if served.stored else [None] * len(texts)
    target = served.config.target
    return as_json([None if logits_C is None else rankings(target, logits_C[None])[0] for logits_C in found])


POST: dict[str, tuple[type[Question], Route]] = {
    "/": (HubQuestion, hub),
    "/predict": (PredictQuestion, predict),
    "/embed": (EmbedQuestion, embed),
    "/teacher": (PredictQuestion, teacher),
}


async def _rows(served: Served, batches: Batches, texts: Texts, truncate: bool | None) -> Floats:
    """The student's numbers for texts, which are cut if they are too long, unless the client will not have it."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            if truncate is False:
                await served.check_lengths(texts)
            return await batches.ask(texts)
    except TimeoutError as error:
        raise RefusedError(429, "Overloaded", "Model is overloaded") from error
    except DistillError as error:
        raise RefusedError(424, "Backend", str(error)) from error


def _vectors_as_json(vectors_NF: Floats) -> Reply:
    """Row by row, so that other requests go on meanwhile."""
    if not np.isfinite(vectors_NF).all():
        raise RefusedError(424, "Backend", "score is NaN")
    rows = (json.dumps(row, separators=(",", ":")) for row in vectors_NF.tolist())
    return Reply(f"[{','.join(rows)}]".encode())
