"""Compares the inputs of a file with those that a student learned from, as measured by `pipeline.tasks.text_drift`.

Shapes: N inputs, T tokens.
"""

from collections.abc import Sequence
from typing import Any

from pipeline import console
from pipeline.tasks.text_drift import Drift, drifts
from student.predict.multi_task import AnyPredictor, members
from student.predict.predictor import Predictor

MOST = 10_000  # inputs of a file that are compared: more change no verdict


class Sample:
    """At most `MOST` inputs, evenly spaced, of a stream whose length nobody knows."""

    def __init__(self) -> None:
        self._inputs: list[tuple[Any, ...]] = []
        self._step, self._count = 1, 0

    def places(self, count: int) -> range:
        """Returns which of the next inputs, so many, belong to it and have to be added."""
        first = -self._count % self._step
        self._count += count
        return range(first, count, self._step)

    def add(self, *texts: Sequence[Any] | None) -> None:
        """Adds inputs: the first sentences, and the second ones or None."""
        self._inputs += zip(*(part for part in texts if part is not None), strict=True)
        # Every second one goes, and from now on every second one comes.
        while len(self._inputs) > MOST:
            self._inputs, self._step = self._inputs[::2], 2 * self._step

    def drift(self, predictor: Predictor) -> list[Drift]:
        """Compares the sample with the inputs of the student. Empty if these are not known, or there are none."""
        profile = predictor.info.profile
        if profile is None or not self._inputs:
            return []
        columns = [list(column) for column in zip(*self._inputs, strict=True)]
        return drifts(profile, profile.counts(predictor.signals(*columns)))


def warned(predictor: AnyPredictor, sample: Sample, place: str) -> list[dict[str, Any]]:
    """Compares a sample with the inputs of each student, and warns of each signal that differs noticeably.

    Returns: What a `Drift` has, with the ``task`` of the student.
    """
    found = [(task, one) for task, student in members(predictor).items() for one in sample.drift(student)]
    for task, one in found:
        if one.is_drifted:
            console.warn(
                f"{place}: the {NAMES[one.signal]} differ from those of the task {task} (population stability index "
                f"{one.psi:.2f}, limit {one.limit:.2f})"
            )
    return [{"task": task} | one.model_dump() for task, one in found]


NAMES = {
    "tokens": "lengths of texts",
    "unknown": "shares of tokens that no training row had",
    "label": "shares of the predicted labels",
    "margin": "margins of predictions",
    "score": "predicted scores",
}
