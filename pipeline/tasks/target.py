"""The meaning of a teacher's logits: class scores, independent labels, bins of a score, or the score itself.

Shapes: N rows, C logits.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from pipeline.arrays import Bools, Floats, Ints
from pipeline.errors import ConfigError, IntegrityError
from pipeline.tasks.task import Bins, ClassMetric, LabelMetric, Metric, Objective, ScoreMetric, Task

if TYPE_CHECKING:
    import pyarrow as pa

TargetKind = Literal["classes", "labels", "bins", "score"]
NO_LABEL = -1
SUM_TOLERANCE = 0.01  # of probabilities from elsewhere, which are often rounded
LEAST = 1e-9  # of a probability: its logarithm is a logit, which has to be finite


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
            raise ValueError("bins are only for kind 'bins'")
        if (self.bins is not None and self.bins.count != len(self.names)) or not self.names:
            raise ValueError(f"{len(self.names)} names, but exactly one name per logit is required")
        if self.kind == "score" and len(self.names) != 1:
            raise ValueError("a score has one logit")
        return self

    @property
    def num_logits(self) -> int:
        """Number of logits per row, C."""
        return len(self.names)

    @property
    def type(self) -> "TargetType":
        """The rules for logits and gold of its kind."""
        return TARGET_TYPES[self.kind]

    @property
    def has_labels(self) -> bool:
        """Whether the logits belong to labels and not to a score."""
        return self.type.has_labels

    @property
    def has_classes(self) -> bool:
        """Whether each row has a single label."""
        return self.type.has_labels and not self.type.why_no_classes

    @property
    def has_label_lists(self) -> bool:
        """Whether any number of labels may hold for a row."""
        return self.type.has_label_lists

    @property
    def is_score(self) -> bool:
        """Whether the logit is the score itself, which has no distribution."""
        return self.type.problem_type == "regression"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics for it."""
        return self.type.metrics

    def gold(self, label_N: Ints, score_N: Floats) -> Ints | Floats:
        """Returns the training targets: label_NC for labels, float32 scores for a score, otherwise int64 classes."""
        return self.type.gold(self, label_N, score_N)

    def answers(self, logits_NC: Floats) -> Floats:
        """Returns the predictions of logits, float32: probabilities of the labels [N, C], or scores [N, 1]."""
        return probabilities(self, logits_NC) if self.has_labels else predicted_scores(self, logits_NC)[:, None]


class TargetType(ABC):
    """A kind of target: how its logits and its gold are read. There is one class for each `TargetKind`.

    Attributes:
        has_labels: whether the logits belong to labels.
        metrics: the metrics that fit.
        meaning: the meaning of the logits, for messages.
        why_no_classes: why a row of the task has no single label, empty if it has one.
        problem_type: its name in the configs of transformers.
        has_label_lists: whether a row of the column ``label`` is a list.
    """

    has_labels: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = get_args(ScoreMetric)
    meaning: ClassVar[str]
    why_no_classes: ClassVar[str] = "has scores and no labels"
    problem_type: ClassVar[str] = "single_label_classification"
    has_label_lists: ClassVar[bool] = False

    @abstractmethod
    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Ints | Floats:
        """Returns the training targets. See `Target.gold`."""

    def has_gold(self, label_N: Ints, score_N: Floats) -> Bools:
        """Returns which rows have gold [N]."""
        return np.isfinite(score_N)

    def probabilities(self, logits_NC: Floats) -> Floats:
        """Returns the probability of each logit's label or bin."""
        return softmax(logits_NC)

    def labels(self, target: Target, label: "pa.Array") -> Ints:
        """Returns the column ``label`` as an array. See `gold_arrays`."""
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
    meaning = "independent labels"
    why_no_classes = "may have any number of labels per row"
    problem_type = "multi_label_classification"
    has_label_lists = True

    def gold(self, target: Target, label_N: Ints, score_N: Floats) -> Ints:
        return label_N

    def has_gold(self, label_N: Ints, score_N: Floats) -> Bools:
        return np.asarray(label_N[:, 0] != NO_LABEL)

    def probabilities(self, logits_NC: Floats) -> Floats:
        return sigmoid(logits_NC)

    def labels(self, target: Target, label: "pa.Array") -> Ints:
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
    """Returns what the logits of a task mean. For regression, ``objective`` chooses between bins and the score.

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
    """Returns the target of ``task`` with ``num_logits`` logits, or None."""
    objectives: tuple[Objective, ...] = ("regression", "classification")
    possible = (
        [make_target(task)]
        if task.type != "regression" or task.bins is None
        else [make_target(task, objective) for objective in objectives]
    )
    return next((target for target in possible if target.num_logits == num_logits), None)


def gold_classes(target: Target, label_N: Ints, score_N: Floats) -> Ints:
    """Returns the class number of each row's gold, or ``NO_LABEL``.

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
    """Returns which rows have gold [N], from the arrays of `gold_arrays`."""
    return target.type.has_gold(label_N, score_N)


def softmax(logits_NC: Floats) -> Floats:
    """Returns the probabilities of each row, computed in float64 and returned as float32."""
    shifted = logits_NC.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    exp = np.exp(shifted)
    return np.asarray(exp / exp.sum(axis=1, keepdims=True), dtype=np.float32)


def log_of(p_NC: Floats) -> Floats:
    """Returns logits whose softmax are these probabilities, float32 [N, C]."""
    return np.log(np.maximum(p_NC, np.float32(LEAST)))


def sigmoid(logits_NC: Floats) -> Floats:
    """Returns the probability of each independent label, computed in float64 and returned as float32."""
    return np.exp(-np.logaddexp(0, -logits_NC.astype(np.float64))).astype(np.float32)


def probabilities(target: Target, logits_NC: Floats) -> Floats:
    """Returns the probability of each label. They add up to 1 unless labels are independent."""
    return target.type.probabilities(logits_NC)


def margins(p_NC: Floats) -> Floats:
    """Returns the best probability of each row less the second best, float32 [N]."""
    # Partitioning finds the two best without sorting all classes.
    second_N, best_N = np.partition(p_NC, -2, axis=1)[:, -2:].T
    return np.asarray(best_N - second_N)


def predicted_scores(target: Target, logits_NC: Floats) -> Floats:
    """Returns the score of each row's logits: the logit itself, or the expectation over the bins."""
    if target.bins is None:
        return np.asarray(logits_NC[:, 0])
    return np.asarray(softmax(logits_NC) @ np.asarray(target.bins.values, dtype=np.float32))


def gold_arrays(target: Target, rows: "pa.Table") -> tuple[Ints, Floats]:
    """Returns the columns label (int64) and score (float32) as arrays, with ``NO_LABEL`` and NaN for missing gold.

    Returns:
        label_N: the class of each row. With several labels per row, label_NC: 1 if a label holds, otherwise 0.
        score_N: the score of each row.

    Raises:
        IntegrityError: if a list of labels contains something else.
    """
    import pyarrow as pa

    score = rows.column("score").cast(pa.float32()).fill_null(float("nan")).to_numpy()
    return target.type.labels(target, rows.column("label").combine_chunks()), np.array(score, dtype=np.float32)


def _indicators(label: "pa.Array", num_labels: int) -> Ints:
    """Returns lists of label numbers, which may come from an untrusted file, as label_NC."""
    import pyarrow.compute as pc

    numbers = pc.list_flatten(label)
    strange = [number for number in numbers.unique().to_pylist() if number is None or not 0 <= number < num_labels]
    if strange:
        raise IntegrityError(f"label {strange[0]} of a row is not among the {num_labels} labels")
    label_NC = np.zeros((len(label), num_labels), dtype=np.int64)
    label_NC[pc.is_null(label).to_numpy(zero_copy_only=False)] = NO_LABEL
    label_NC[pc.list_parent_indices(label), numbers] = 1
    return label_NC
