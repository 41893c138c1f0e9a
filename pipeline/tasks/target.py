"""What a teacher's logits stand for: class scores, labels each by itself, bins of a score, or the score itself.

Shapes: N rows, C logits.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Self, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, model_validator

from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import ConfigError, IntegrityError
from pipeline.tasks.task import Bins, ClassMetric, LabelMetric, Metric, Objective, ScoreMetric, Task

TargetKind = Literal["classes", "labels", "bins", "score"]
NO_LABEL = -1
GOLD_TYPE = pa.int32()  # the type of a row's single label
LABEL_LISTS = pa.list_(pa.int32())  # the type of a row's labels, where any number of them may hold


class Target(BaseModel):
    """The meaning of a row of logits.

    Attributes:
        kind: ``classes`` (one logit per label, of which one holds), ``labels`` (one logit per label, which holds or
            not), ``bins`` (one logit per bin of a score) or ``score`` (one logit, the score itself).
        names: one name per logit.
        bins: the bins, for kind ``bins``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: TargetKind
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

    @property
    def type(self) -> "TargetType":
        """How logits and gold of its kind are read."""
        return TARGET_TYPES[self.kind]

    @property
    def has_labels(self) -> bool:
        """Whether the logits are those of labels, and not of a score."""
        return self.type.has_labels

    @property
    def has_classes(self) -> bool:
        """Whether each row has a single label."""
        return self.type.has_labels and not self.type.why_no_classes

    @property
    def has_label_lists(self) -> bool:
        """Whether any number of labels may hold for a row."""
        return bool(self.type.gold_type == LABEL_LISTS)

    @property
    def is_score(self) -> bool:
        """Whether the logit is the score itself, which has no distribution."""
        return self.type.problem_type == "regression"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that it can be scored by."""
        return self.type.metrics

    def gold(self, label_N: Ints, score_N: Floats) -> Ints | Floats:
        """The training targets: indicators label_NC of labels, float32 scores of a score, else int64 classes."""
        return self.type.gold(self, label_N, score_N)

    def answers(self, logits_NC: Floats) -> Floats:
        """The predictions of rows of logits, float32: probabilities of the labels [N, C], or scores [N, 1]."""
        return probabilities(self, logits_NC) if self.has_labels else predicted_scores(self, logits_NC)[:, None]


class TargetType(ABC):
    """A kind of target: how its logits and its gold are read. There is one class for each `TargetKind`.

    Attributes:
        has_labels: whether the logits are those of labels.
        metrics: the metrics that fit.
        meaning: what the logits are, for messages.
        why_no_classes: why a row of the task has no single label, empty if it has one.
        problem_type: as the configs of transformers name it.
        gold_type: the Arrow type of the column ``label``.
    """

    has_labels: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = get_args(ScoreMetric)
    meaning: ClassVar[str]
    why_no_classes: ClassVar[str] = "has scores and no labels"
    problem_type: ClassVar[str] = "single_label_classification"
    gold_type: ClassVar[pa.DataType] = GOLD_TYPE

    @abstractmethod
    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Ints | Floats:
        """The training targets, see `Target.gold`."""

    def has_gold(self, label_N: Ints, score_N: Floats) -> Bools:
        """The rows that have gold [N]."""
        return np.isfinite(score_N)

    def probabilities(self, logits_NC: Floats) -> Floats:
        """The probability of each logit's label or bin."""
        return softmax(logits_NC)

    def labels(self, target: Target, label: pa.Array) -> Ints:
        """The column ``label`` as an array, see `gold_arrays`."""
        return np.asarray(label.fill_null(NO_LABEL).to_numpy().astype(np.int64))


class _Classes(TargetType):
    has_labels = True
    metrics = get_args(ClassMetric)
    meaning = "classes"
    why_no_classes = ""

    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Ints:
        return label_N

    def has_gold(self, label_N: Ints, score_N: Floats) -> Bools:
        return np.asarray(label_N != NO_LABEL)


class _Labels(TargetType):
    has_labels = True
    metrics = get_args(LabelMetric)
    meaning = "labels each by itself"
    why_no_classes = "may have any number of labels a row"
    problem_type = "multi_label_classification"
    gold_type = LABEL_LISTS

    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Ints:
        return label_N

    def has_gold(self, label_N: Ints, score_N: Floats) -> Bools:
        return np.asarray(label_N[:, 0] != NO_LABEL)

    def probabilities(self, logits_NC: Floats) -> Floats:
        return sigmoid(logits_NC)

    def labels(self, target: Target, label: pa.Array) -> Ints:
        return _indicators(label, target.num_logits)


class _Bins(TargetType):
    meaning = "bins"

    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Ints:
        return gold_classes(target, label_N, score_N)


class _Score(TargetType):
    meaning = "a score"
    problem_type = "regression"

    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Floats:
        return score_N


TARGET_TYPES: dict[TargetKind, TargetType] = {
    "classes": _Classes(),
    "labels": _Labels(),
    "bins": _Bins(),
    "score": _Score(),
}


def make_target(task: Task, objective: Objective | None = None) -> Target:
    """Decides what the logits of a task mean; ``objective`` chooses between bins and the score for regression.

    Raises:
        ConfigError: if the task cannot be trained with that objective.
    """
    if task.type != "regression":
        if objective == "regression":
            raise ConfigError(f"--objective regression: task {task.name!r} has labels, not scores")
        return Target(kind="labels" if task.type == "multilabel" else "classes", names=task.labels)
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
        if task.type != "regression" or task.bins is None
        else [make_target(task, objective) for objective in objectives]
    )
    return next((target for target in possible if target.num_logits == num_logits), None)


def gold_classes(target: Target, label_N: Ints, score_N: Floats) -> Ints:
    """Class number of each row's gold, ``NO_LABEL`` where there is none.

    Scores are cut into bins as T5 and the CMOW paper's code do: rounded to the nearest multiple of
    the width (halves to even), then clipped to both ends.
    """
    if target.has_classes:
        return label_N
    if target.bins is None:
        raise ValueError(f"a target of kind {target.kind!r} has no classes")
    bins = target.bins
    known = np.isfinite(score_N)
    position_N = np.rint(np.where(known, score_N, 0.0) * (1 / bins.width)) - bins.low / bins.width
    class_N = np.clip(np.rint(position_N), 0, bins.count - 1).astype(np.int64)
    return np.where(known, class_N, NO_LABEL)


def has_gold(target: Target, label_N: Ints, score_N: Floats) -> Bools:
    """Which rows have gold [N], of the arrays that `gold_arrays` gives."""
    return target.type.has_gold(label_N, score_N)


def softmax(logits_NC: Floats) -> Floats:
    """Probabilities of each row, computed in float64 and returned as float32."""
    shifted = logits_NC.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    exp = np.exp(shifted)
    return np.asarray(exp / exp.sum(axis=1, keepdims=True), dtype=np.float32)


def sigmoid(logits_NC: Floats) -> Floats:
    """Probability of each label by itself, computed in float64 and returned as float32."""
    return np.exp(-np.logaddexp(0, -logits_NC.astype(np.float64))).astype(np.float32)


def probabilities(target: Target, logits_NC: Floats) -> Floats:
    """Of each label: they add up to 1, unless each label holds or not by itself."""
    return target.type.probabilities(logits_NC)


def predicted_scores(target: Target, logits_NC: Floats) -> Floats:
    """The score each row's logits mean: the logit itself, or the expectation over the bins."""
    if target.bins is None:
        return np.asarray(logits_NC[:, 0])
    return np.asarray(softmax(logits_NC) @ np.asarray(target.bins.values, dtype=np.float32))


def gold_arrays(target: Target, rows: pa.Table) -> tuple[Ints, Floats]:
    """The columns label and score as arrays: int64 with ``NO_LABEL``, float32 with NaN, where there is no gold.

    Returns:
        label_N: the class of each row. Where any number of labels may hold, label_NC: 1 if a label does, else 0.
        score_N: the score of each row.

    Raises:
        IntegrityError: if a list of labels contains something else.
    """
    score = rows.column("score").cast(pa.float32()).fill_null(float("nan")).to_numpy()
    return target.type.labels(target, rows.column("label").combine_chunks()), np.array(score, dtype=np.float32)


def _indicators(label: pa.Array, num_labels: int) -> Ints:
    """Lists of the numbers of labels as label_NC; they may come from a stranger's file."""
    numbers = pc.list_flatten(label)
    strange = [number for number in numbers.unique().to_pylist() if number is None or not 0 <= number < num_labels]
    if strange:
        raise IntegrityError(f"label {strange[0]} of a row is not one of the {num_labels} there are")
    label_NC = np.zeros((len(label), num_labels), dtype=np.int64)
    label_NC[pc.is_null(label).to_numpy(zero_copy_only=False)] = NO_LABEL
    label_NC[pc.list_parent_indices(label), numbers] = 1
    return label_NC
