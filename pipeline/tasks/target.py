"""What a teacher's logits stand for: class scores, bins of a score, or the score itself.

Shapes: N rows, C logits.
"""

from typing import Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, model_validator

from pipeline.arrays import Floats, Ints
from pipeline.errors import ConfigError
from pipeline.tasks.task import Bins, Objective, Task

NO_LABEL = -1


class Target(BaseModel):
    """The meaning of a row of logits.

    Attributes:
        kind: ``classes`` (one logit per label), ``bins`` (one logit per bin of a score) or ``score`` (one logit, the
            score itself).
        names: one name per logit.
        bins: the bins, for kind ``bins``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["classes", "bins", "score"]
    names: tuple[str, ...]
    bins: Bins | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.bins is not None) != (self.kind == "bins"):
            raise ValueError("bins are for kind 'bins', and for no other")
        if (self.bins is not None and self.bins.count != len(self.names)) or not self.names:
            raise ValueError(f"{len(self.names)} names, which is not one for each logit")
        if self.kind == "score" and len(self.names) != 1:
            raise ValueError("a score is one logit")
        return self

    @property
    def num_logits(self) -> int:
        """Number of logits per row, C."""
        return len(self.names)


def make_target(task: Task, objective: Objective | None = None) -> Target:
    """Decides what the logits of a task mean; ``objective`` chooses between bins and the score for regression.

    Raises:
        ConfigError: if the task cannot be trained with that objective.
    """
    if task.type == "classification":
        if objective == "regression":
            raise ConfigError(f"--objective regression: task {task.name!r} has labels, not scores")
        return Target(kind="classes", names=task.labels)
    if objective == "classification":
        if task.bins is None:
            raise ConfigError(f"--objective classification: the manifest of {task.name!r} has no `bins`")
        return Target(kind="bins", names=tuple(f"{v:g}" for v in task.bins.values), bins=task.bins)
    return Target(kind="score", names=("score",))


def target_of_width(task: Task, num_logits: int) -> Target | None:
    """The target of ``task`` that has ``num_logits`` logits, or None if there is none."""
    objectives: tuple[Objective, ...] = ("regression", "classification")
    possible = (
        [make_target(task)]
        if task.type == "classification" or task.bins is None
        else [make_target(task, objective) for objective in objectives]
    )
    return next((target for target in possible if target.num_logits == num_logits), None)


def gold_classes(target: Target, label_N: Ints, score_N: Floats) -> Ints:
    """Class number of each row's gold, ``NO_LABEL`` where there is none.

    Scores are cut into bins as T5 and the CMOW paper's code do: rounded to the nearest multiple of
    the width (halves to even), then clipped to both ends.
    """
    if target.kind == "classes":
        return label_N
    if target.bins is None:
        raise ValueError(f"a target of kind {target.kind!r} has no classes")
    bins = target.bins
    known = np.isfinite(score_N)
    position_N = np.rint(np.where(known, score_N, 0.0) * (1 / bins.width)) - bins.low / bins.width
    class_N = np.clip(np.rint(position_N), 0, bins.count - 1).astype(np.int64)
    return np.where(known, class_N, NO_LABEL)


def softmax(logits_NC: Floats) -> Floats:
    """Probabilities of each row, computed in float64 and returned as float32."""
    shifted = logits_NC.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    exp = np.exp(shifted)
    return np.asarray(exp / exp.sum(axis=1, keepdims=True), dtype=np.float32)


def predicted_scores(target: Target, logits_NC: Floats) -> Floats:
    """The score each row's logits mean: the logit itself, or the expectation over the bins."""
    if target.bins is None:
        return np.asarray(logits_NC[:, 0])
    return np.asarray(softmax(logits_NC) @ np.asarray(target.bins.values, dtype=np.float32))


def gold_arrays(rows: pa.Table) -> tuple[Ints, Floats]:
    """The columns label and score as arrays [N]: int64 with ``NO_LABEL``, float32 with NaN, where there is no gold."""
    label = rows.column("label").fill_null(NO_LABEL).to_numpy().astype(np.int64)
    score = rows.column("score").cast(pa.float32()).fill_null(float("nan")).to_numpy()
    return label, np.array(score, dtype=np.float32)
