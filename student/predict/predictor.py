"""From text to labels, by a trained student and its tokenizer alone.

Shapes: N inputs, F features, C logits.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pipeline.arrays import Floats, Floats64, Ints
from pipeline.errors import ConfigError
from student.predict.backend import Backend
from student.predict.open import open_backend
from student.predict.text_answers import Prediction, TextAnswers
from student.texts import listed

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE = 1024  # inputs that are read at once


class Predictor:
    """A trained student that reads text: from the folder of its run, or from its file without torch.

    Args:
        run: folder of a finished run, a file of ``distill export --file``, or the folder of a cascade.
        task: of a run of several tasks the one to answer for, the name of its folder in ``run``.
        abstain: answer ``abstain`` where the student is less sure than its certificate (``distill certify``) demands.
        costs: what it costs to miss a label, by its name, where missing any other costs 1.

    Attributes:
        backend: what computes logits: `EngineBackend`, `TorchBackend` or `Cascade`.
        answers: what makes answers of them: of whole texts, of words, or of a cascade's stages.
        info: what it answers, and for which inputs.
        threshold: the margin below which it abstains, or None if it never does.
        bias_C: added to the logits before labels are chosen, from thresholds of a multi-label student and costs, or
            None.

    Raises:
        IntegrityError: if the folder holds no student, or the file is not one's.
        ConfigError: if it must abstain but the run has no certificate, or if a cost has an unknown label.
    """

    def __init__(
        self,
        run: str | Path,
        abstain: bool = False,
        costs: Mapping[str, float] | None = None,
        task: str | None = None,
    ) -> None:
        self._answer_by(open_backend(Path(run), task), abstain, costs)

    @classmethod
    def of(cls, backend: Backend, abstain: bool = False, costs: Mapping[str, float] | None = None) -> Self:
        """Returns the predictor of a student that is open."""
        predictor = cls.__new__(cls)
        predictor._answer_by(backend, abstain, costs)
        return predictor

    def _answer_by(self, backend: Backend, abstain: bool, costs: Mapping[str, float] | None) -> None:
        if abstain and costs:
            raise ConfigError(
                "costs: a certificate is about the most probable label. Remove the costs, or do not abstain"
            )
        if abstain and backend.info.labels_words:
            raise ConfigError("--abstain: a certificate is about whole texts, not for labelled words")
        self.backend, self.info = backend, backend.info
        self.threshold = backend.certified_threshold() if abstain else None
        self.bias_C = backend.bias(costs or {})
        self.answers: TextAnswers = backend.answers(backend, self.threshold, self.bias_C)

    def __call__(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """Predicts labels, or scores for a task with scores.

        Args:
            sentences1: the (first) sentences, or pairs of texts, as a list, an array, a column or an iterator. For
                labelled words, a sentence may be a list of words.
            sentences2: the second sentences, for a pair task.

        Returns:
            One dict per input: ``label`` (of a multi-label task the list of labels that hold) and calibrated
            ``probabilities`` by label name, or ``score`` and the ``interval`` that contains gold in 9 of 10 cases.
            Of a cascade also the ``stage`` that answered. For labelled words, see `WordAnswers.predictions`.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
            DataError: if an input is not text.
        """
        return self.answers.predictions(sentences1, sentences2)

    def columns(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> "dict[str, pa.Array]":
        """The answers as columns: what `predict --file` writes of each input, see `answer_columns`."""
        return self.answers.columns(sentences1, sentences2)

    def logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """The student's logits as an array, which for many sentences is several times as fast as dicts.

        Args:
            sentences1: the (first) sentences, or pairs of texts, as of a call.
            sentences2: the second sentences, for a pair task.

        Returns:
            float32 logits [N, C] before softmax, in the order of the labels of ``info.target``.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round, or labels words.
        """
        return self.answers.logits(sentences1, sentences2)

    def calibrated_logits(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> Floats:
        """The logits [N, C] of which softmax, or sigmoid of labels apart, makes calibrated probabilities."""
        return self.answers.calibrated_logits(sentences1, sentences2)

    def explain(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """Predicts, and computes the effect of each word by leaving it out, which takes one more sequence per word.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for a pair task.

        Returns:
            What calling gives, with the list ``words``: a dict for each word, see `student.word_effects.effects`.

        Raises:
            ConfigError: as of `logits`.
        """
        return self.answers.explain(sentences1, sentences2)

    def encode(self, sentences: Iterable[str]) -> Floats:
        """What the student makes of each sentence before it compares or judges: its vector.

        Args:
            sentences: also of a student of pairs, each alone.

        Returns:
            float32 [N, F], not normalised.
        """
        return self.backend.encode(listed(sentences))

    def num_tokens(self, sentences1: Iterable[str], sentences2: Iterable[str] | None = None) -> Ints:
        """Returns the tokens of each input [N], special ones included, before it is truncated."""
        return self.backend.num_tokens(listed(sentences1), None if sentences2 is None else listed(sentences2))

    def signals(self, sentences1: Iterable[Any], sentences2: Iterable[str] | None = None) -> dict[str, Floats64]:
        """Returns the numbers by which inputs are compared with ``info.profile``. Arguments as of a call."""
        return self.answers.signals(sentences1, sentences2)

    @property
    def student(self) -> Any:
        """The torch module."""
        return self.backend.student

    @property
    def reader(self) -> Any:
        """What makes ids of its texts, a `TextReader`."""
        return self.backend.reader

    @property
    def is_pair(self) -> bool:
        """Whether an input has two texts."""
        return self.info.is_pair

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of all that decides the answers, by file."""
        return self.backend.hashes()

    def set_threads(self, count: int) -> None:
        """Limits the threads that read many inputs."""
        self.backend.set_threads(count)
