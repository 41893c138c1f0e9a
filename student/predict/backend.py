"""What computes the logits of texts: the engine, torch, or a cascade of students.

Shapes: N inputs, F features, C logits, W words of all inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pipeline.arrays import Floats, Floats64, Ints
from student.predict.student_info import StudentInfo


class Backend(Protocol):
    """A student that is open.

    Attributes:
        student: the torch module.
        reader: what makes ids of its texts, a `TextReader`.
    """

    @property
    def info(self) -> StudentInfo:
        """What it predicts, and for which inputs."""

    @property
    def student(self) -> Any: ...

    @property
    def reader(self) -> Any: ...

    @property
    def answers(self) -> type:
        """What makes answers of its logits: `student.predict.text_answers.TextAnswers`, or a subclass."""

    @property
    def is_quick(self) -> bool:
        """Whether some dozens of sentences take it a millisecond or two."""

    def logits(self, first: Sequence[str], second: Sequence[str] | None) -> Floats:
        """Returns logits [N, C], not calibrated."""

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """Returns the logits of the words of all sentences [W, C], of a student that labels words.

        Those of a word without tokens are as sure as possible that it is outside of spans.
        """

    def encode(self, texts: Sequence[str]) -> Floats:
        """Returns the vectors of texts [N, F]."""

    def num_tokens(self, first: Sequence[str], second: Sequence[str] | None) -> Ints:
        """Returns the tokens of each input [N], special ones included, before it is truncated."""

    def text_signals(self, first: Sequence[str], second: Sequence[str] | None) -> dict[str, Floats64]:
        """Returns what `pipeline.tasks.text_drift.text_signals` measures of texts."""

    def text_columns(self) -> list[tuple[str, ...]] | None:
        """Returns what its task calls the columns of texts, or None if that is not known."""

    def certified_threshold(self) -> float:
        """Returns the margin below which it is to abstain. Raises ConfigError without a certificate."""

    def bias(self, costs: Mapping[str, float]) -> Floats | None:
        """Returns what is added to logits before labels are chosen, see `student.predict.labels.bias_of`."""

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of all that decides the answers, by file."""

    def set_threads(self, count: int) -> None:
        """Limits the threads that read many inputs."""


# The logits of texts by task, from one reading of each text.
SharedLogits = Callable[[Sequence[str], Sequence[str] | None], dict[str, Floats]]
# The students by task, and which of them answer together; without a function each of them by itself.
Opened = tuple[dict[str, Backend], list[tuple[list[str], SharedLogits | None]]]
