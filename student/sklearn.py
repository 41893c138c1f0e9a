"""A student as a classifier of scikit-learn: text in, labels out, trained from a set."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.sets.kinds.examples import ExampleSet
from pipeline.tasks.target import Target, softmax
from student.predict.predictor import Predictor
from student.predict.torch_backend import TorchBackend
from student.settings import TrainSettings
from student.source_settings import Where
from student.texts import is_sequence, listed
from student.train import train
from student.training_data import open_training_set, source_of

MAX_EXAMPLES = 3

Texts = Sequence[str] | Sequence[Sequence[str]]  # sentences, or rows of two sentences


class StudentClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns from a set's logits for the given texts.

    Args:
        set: the path of a set, or its name in the store.
        flags: other flags of ``distill train-student`` by name, such as ``{"num_train_epochs": 3}``.
        output_dir: folder of the run. A finished run is used unchanged. Default: a temporary folder.

    Attributes:
        classes_: the labels [C] as the gold in `fit` wrote them, in the order of the columns of `predict_proba`.
        predictor_: what answers.
    """

    def __init__(
        self,
        set: str | Path | None = None,
        flags: Mapping[str, Any] | None = None,
        output_dir: str | Path | None = None,
    ) -> None:
        self.set = set
        self.flags = flags
        self.output_dir = output_dir

    def fit(self, X: Texts | None = None, y: Any = None) -> Self:
        """Trains on the set's rows, or only on those with these texts.

        Args:
            X: texts of the set, such as the training part of a split. Default: all rows.
            y: the form of predictions: labels by names, by numbers in the set's order, or as booleans for two labels.
                Training uses the set's own gold. Default: names.

        Raises:
            ConfigError: naming every flag that does not fit, or if the task has scores and no labels.
            DataError: if the set has no row with one of the texts, or ``y`` contains an unknown label.
        """
        flags = dict(self.flags or {})
        if self.set is not None:
            flags["set"] = (str(self.set),)
        settings = TrainSettings.from_flags(**flags)
        source = source_of(settings)
        logit_set = open_training_set(source, settings.store, settings.allow_unverified)
        if not isinstance(logit_set, ExampleSet):
            raise ConfigError(
                f"StudentClassifier: {logit_set.root}: labels words. Use distill.train_student and distill.Predictor."
            )
        _require_classes(logit_set.record.target)
        classes = classes_as(y, logit_set.record.target.names)
        if X is not None:
            columns = _columns(X)
            if y is not None:
                check_consistent_length(columns[0], y)
            condition = source.chosen.where if isinstance(source.chosen, Where) else None
            flags["where"] = _where(logit_set, condition, columns)
        with TemporaryDirectory(prefix="distill-sklearn-") as temporary:
            folder = Path(self.output_dir or temporary)
            train(TrainSettings.from_flags(**flags, output_dir=folder), "student.sklearn.StudentClassifier.fit")
            # The folder may be temporary, and this predictor has its weights in memory.
            self._answer_by(Predictor.of(TorchBackend(folder)))
        self.classes_ = classes
        return self

    @classmethod
    def of_run(cls, run: str | Path) -> Self:
        """Returns a fitted classifier from a finished run."""
        return cls(output_dir=run)._answer_by(Predictor(run))

    def predict(self, X: Texts) -> np.ndarray:
        """Returns the label of each text [N], in the form of ``y`` in `fit`."""
        p_NC = self.predict_proba(X)  # called first, because it checks that there is a model
        return self.classes_[p_NC.argmax(axis=1)]  # type: ignore[no-any-return]

    def predict_proba(self, X: Texts) -> Floats:
        """Returns the calibrated probability of each label, float32 [N, C], in the order of ``classes_``."""
        check_is_fitted(self)
        return softmax(self.predictor_.calibrated_logits(*_columns(X)))

    def _answer_by(self, predictor: Predictor) -> Self:
        self.predictor_ = predictor
        target = self.predictor_.info.target
        _require_classes(target)
        self.classes_ = np.array(target.names)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.target_tags.required = False
        tags.no_validation = True  # texts are not arrays of numbers
        return tags


def classes_as(y: Any, names: Sequence[str]) -> np.ndarray:
    """Returns the labels [C] in the form of gold.

    Args:
        y: names, booleans, or numbers, which mean the names of labels if all of these are numbers. None: names.
        names: the names of the labels.

    Raises:
        DataError: naming the first value that is not a label.
    """
    if y is None:
        return np.array(names)
    values: list[Any] = [value.item() if isinstance(value, np.generic) else value for value in listed(y)]
    known: dict[Any, int] = {name: number for number, name in enumerate(names)}
    is_text = all(isinstance(value, str) for value in values)
    if not is_text:
        numbers = list(map(int, names)) if all(name.lstrip("-").isdecimal() for name in names) else range(len(names))
        known = {number: place for place, number in enumerate(numbers)}
    kinds = {bool if isinstance(value, bool) else type(value) for value in values}
    for place, value in enumerate(values):
        is_label = isinstance(value, str | int | float) and value in known
        if not is_label or (bool in kinds and (len(kinds) > 1 or len(names) != len((False, True)))):
            labels = ", ".join(f"{number} {name!r}" for name, number in zip(names, known, strict=True))
            raise DataError(
                f"y: row {place} (from 0) is {value!r:.80}, which is not a label: {labels}. Give names or numbers."
            )
    if is_text:
        return np.array(names)
    return np.array(list(known)).astype(np.array(values).dtype)


def _require_classes(target: Target) -> None:
    if not target.has_classes:
        raise ConfigError(f"StudentClassifier: this task {target.type.why_no_classes}. Use distill.Predictor.")


def _columns(X: Texts) -> tuple[list[str], ...]:
    """Returns the sentences, or the first and the second sentences of pairs."""
    rows = listed(X)
    for number, row in enumerate(rows):
        if _num_texts(row) is None or _num_texts(row) != _num_texts(rows[0]):
            raise DataError(
                f"row {number} (from 0) is {row!r:.80}. All rows must be texts, or all must be pairs of texts"
            )
    return (rows,) if not rows or isinstance(rows[0], str) else tuple(map(list, zip(*rows, strict=True)))


def _num_texts(row: Any) -> int | None:
    """Returns the number of texts in a row, 0 for a text itself, or None for anything else."""
    if isinstance(row, str):
        return 0
    is_list = is_sequence(row) and len(row) in (1, 2)
    return len(row) if is_list and all(isinstance(text, str) for text in row) else None


def _where(logit_set: ExampleSet, condition: str | None, columns: tuple[list[str], ...]) -> str:
    """Returns the condition for the rows with these texts, in addition to an existing one."""
    names = ("sentence1", "sentence2")[: 1 + logit_set.record.is_pair]
    if len(columns) != len(names):
        raise ConfigError(f"fit: {logit_set.root} has {'pairs' if len(names) > 1 else 'one sentence'} in each row")
    table = logit_set.read("train", ("source_row", *names), "variant = 0")
    known: dict[tuple[str, ...], list[int]] = {}
    for number, *texts in zip(*(table.column(name).to_pylist() for name in ("source_row", *names)), strict=True):
        known.setdefault(tuple(texts), []).append(number)
    wanted = dict.fromkeys(zip(*columns, strict=True))
    missing = [texts for texts in wanted if texts not in known]
    shown = [f"{logit_set.root}: it has no predictions for {' and '.join(map(repr, one))}" for one in missing]
    more = [f"and {len(missing) - MAX_EXAMPLES:,} others"] if len(missing) > MAX_EXAMPLES else []
    raise_all(DataError, "nothing to learn for texts", [*shown[:MAX_EXAMPLES], *more])
    rows = ", ".join(str(row) for row in sorted(row for texts in wanted for row in known[texts]))
    return f"source_row in ({rows})" + (f" and ({condition}\n)" if condition else "")
