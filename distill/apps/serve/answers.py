"""Logits as clients read them: JSON, written for a whole batch, as one input alone costs six times as much.

Shapes: N inputs, C logits.
"""

from operator import itemgetter
from typing import Literal

import numpy as np

from distill.apps.serve.http import ENCODER, RefusedError
from pipeline.arrays import Floats
from pipeline.tasks.target import Target, predicted_scores, sigmoid, softmax

Scale = Literal["softmax", "sigmoid", "none"]
Ranking = list[str]  # a JSON object for each label with its score, the highest first


def rankings(target: Target, logits_NC: Floats, scale: Scale = "softmax") -> list[Ranking]:
    """The labels of each input with their scores, the highest first; of a task with scores that one number.

    Args:
        target: what the logits mean.
        logits_NC: the student's.
        scale: what is made of them: probabilities, each label's own probability, or nothing. Labels that are apart
            have no other probability than their own.

    Raises:
        RefusedError: if a logit is no number.
    """
    if not np.isfinite(logits_NC).all():
        raise RefusedError(424, "Backend", "score is NaN")
    if not target.has_labels:
        return [[_told(score, '"score"')] for score in predicted_scores(target, logits_NC).tolist()]
    scores_NC = _scaled(logits_NC, "sigmoid" if target.kind == "labels" and scale == "softmax" else scale)
    by_score, names = itemgetter(0), [ENCODER.encode(name) for name in target.names]
    named = (zip(row, names, strict=True) for row in scores_NC.tolist())
    ranked = (sorted(row, key=by_score, reverse=True) for row in named)  # of equal ones the first label first
    return [[_told(score, name) for score, name in row] for row in ranked]


def _told(score: float, name: str) -> str:
    return f'{{"score":{score!r},"label":{name}}}'


def _scaled(logits_NC: Floats, scale: Scale) -> Floats:
    if scale == "softmax":
        return softmax(logits_NC)
    if scale == "sigmoid":
        return sigmoid(logits_NC)
    return logits_NC
