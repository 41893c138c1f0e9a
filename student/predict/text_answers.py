"""From logits to labels and probabilities, or to scores, of whole texts.

Shapes: N inputs, C logits.
"""

from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.arrays import Floats, Floats64
from pipeline.errors import ConfigError
from pipeline.tasks.target import predicted_scores, probabilities
from pipeline.tasks.temperature import calibrated, intervals
from pipeline.tasks.text_drift import answer_signals
from student.predict.labels import answer_columns, chosen_names
from student.texts import Texts, listed, unzipped
from student.word_effects import effects, without_each_word

if TYPE_CHECKING:
    import pyarrow as pa

    from student.predict.backend import Backend

Prediction = dict[str, Any]


class TextAnswers:
    """The answers of a student of whole texts. See `student.predict.predictor.Predictor` for its attributes."""

    names: ClassVar[Set[str]] = {"label", "probabilities", "margin", "score", "interval"}  # of `columns`

    def __init__(self, backend: "Backend", threshold: float | None, bias_C: Floats | None) -> None:
        self.backend, self.info, self.threshold, self.bias_C = backend, backend.info, threshold, bias_C

    def texts(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> Texts:
        """The first sentences, and of a student of pairs the second ones.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        info, first, second = self.info, listed(sentences1), None
        if sentences2 is not None:
            second = listed(sentences2)
        elif info.is_pair and not (first and isinstance(first[0], str)):  # no rows at all are no pairs, either
            first, second = unzipped(first)
        if info.is_pair != (second is not None):
            raise ConfigError(f"this student of {info.task!r} takes {'pairs' if info.is_pair else 'one sentence'}")
        if second is not None and len(first) != len(second):
            raise ConfigError(f"{len(first)} first sentences, but {len(second)} second ones")
        return first, second

    def predictions(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> list[Prediction]:
        """Returns what a call of a `Predictor` returns."""
        return self.predictions_of(self.logits(sentences1, sentences2))

    def predictions_of(self, raw_logits_NC: Floats) -> list[Prediction]:
        """Returns the answers to inputs that have these logits."""
        target, logits_NC = self.info.target, calibrated(raw_logits_NC, self.info.calibration)
        if not target.has_labels:
            score_N = predicted_scores(target, logits_NC).astype(np.float64)
            scores = [{"score": score} for score in score_N.tolist()]
            if (ends := intervals(score_N, self.info.calibration)) is None:
                return scores
            return [one | {"interval": row} for one, row in zip(scores, np.transpose(ends).tolist(), strict=True)]
        labels = chosen_names(target, logits_NC, self.threshold, self.bias_C)
        return [
            {"label": label, "probabilities": dict(zip(target.names, row, strict=True))}
            for label, row in zip(labels, probabilities(target, logits_NC).tolist(), strict=True)
        ]

    def columns(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> "dict[str, pa.Array]":
        """Returns the answers by column, see `answer_columns`."""
        return self.columns_of(self.logits(sentences1, sentences2))

    def columns_of(self, raw_logits_NC: Floats) -> "dict[str, pa.Array]":
        """Returns the answers to inputs that have these logits."""
        info = self.info
        logits_NC = calibrated(raw_logits_NC, info.calibration)
        return answer_columns(info.target, logits_NC, self.threshold, self.bias_C, info.calibration)

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> Floats:
        """Returns logits [N, C], not calibrated."""
        return self.backend.logits(*self.texts(sentences1, sentences2))

    def calibrated_logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """Returns the logits [N, C] of which softmax, or sigmoid of labels apart, makes calibrated probabilities."""
        return calibrated(self.logits(sentences1, sentences2), self.info.calibration)

    def explain(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> list[Prediction]:
        """Returns predictions with the effect of each word, see `student.word_effects.effects`."""
        texts = self.texts(sentences1, sentences2)
        answers, logits_NC = self.predictions(*texts), self.calibrated_logits(*texts)
        words, logits_WC = without_each_word(self.calibrated_logits, *texts)
        by_word = effects(self.info.target, logits_NC, words, logits_WC)
        return [answer | {"words": row} for answer, row in zip(answers, by_word, strict=True)]

    def signals(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None) -> dict[str, Floats64]:
        """Returns the numbers by which inputs are compared with the student's profile."""
        texts = self.texts(sentences1, sentences2)
        return self.backend.text_signals(*texts) | answer_signals(self.info.target, self.calibrated_logits(*texts))

    def accepted_columns(self) -> list[tuple[str, ...]]:
        """What the columns of inputs may be called, whatever their task calls them."""
        return [(name,) for name in ("sentence1", "sentence2")[: 1 + self.info.is_pair]]

    def input_problem(self, value: Any) -> str | None:
        """What is wrong with an input, or None if nothing is."""
        return None if isinstance(value, str) else "not text"

    def check_column(self, table: "pa.Table", path: str, name: str, problems: list[str], first_row: int) -> None:
        """Adds what is wrong with a column of inputs of a table that begins with that row of its file."""
        from pipeline.sources.columns import checked_text

        checked_text(table, path, name, problems, first_row)
