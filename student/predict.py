"""From text to labels, by a trained student and its tokenizer alone."""

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch

from pipeline.arrays import Floats, Ragged, stacked
from pipeline.errors import ConfigError
from pipeline.sets.record import TOKENIZER_FILE
from pipeline.tasks.target import predicted_scores, probabilities
from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import load_tokenizer
from student.answers.certificate import certified_threshold
from student.answers.labels import answer_columns, chosen, label_bias
from student.model.architecture import sequences
from student.model.config_file import labels_words
from student.model.model import Student, default_device, load_student
from student.numpy_forward import FEW, numpy_forward
from student.word_effects import effects, without_each_word

BATCH_SIZE = 1024
Ask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

Prediction = dict[str, Any]


class Predictor:
    """A trained student that reads text; of one that labels words this makes its subclass `TokenLabelPredictor`.

    Args:
        run: folder of a finished run.
        task: of a run of several tasks the one to answer for, the name of its folder in ``run``.
        abstain: answer ``abstain`` where the student is less sure than its certificate (``distill certify``) demands.
        costs: what it costs to miss a label, by its name, where missing any other costs 1.

    Attributes:
        threshold: the margin below which it abstains; None if it never does.
        bias_C: added to the logits before labels are chosen: thresholds of a multi-label student, costs; or None.
        is_quick: whether some dozens of sentences take it a millisecond or two.

    Raises:
        IntegrityError: if the folder holds no student.
        ConfigError: if it is to abstain, and the run has no certificate; or if the costs are not of its labels.
    """

    answer_names: ClassVar[Set[str]] = {"label", "probabilities", "margin", "score"}  # columns of `columns`

    def __new__(cls, run: str | Path, *_: Any, task: str | None = None, **__: Any) -> "Predictor":
        """Makes the predictor of the kind of the student in a folder."""
        if not labels_words(Path(run) / (task or "")):
            return super().__new__(cls)
        from student.answers.token_labels import TokenLabelPredictor

        return super().__new__(TokenLabelPredictor)

    def __init__(
        self,
        run: str | Path,
        abstain: bool = False,
        costs: Mapping[str, float] | None = None,
        task: str | None = None,
    ) -> None:
        if abstain and costs:
            raise ConfigError("costs: a certificate is about the likeliest label; abstain without them")
        folder = Path(run) / (task or "")
        student = load_student(folder).to(default_device())
        target = student.config.target
        self.student: Any = student
        self.threshold = certified_threshold(folder) if abstain else None
        self.bias_C = label_bias(folder, target, costs or {})
        student.encoder.lay_out()
        tokenizer = load_tokenizer(folder / TOKENIZER_FILE, student.config.tokenizer_sha256)
        self.reader = TextReader.of(tokenizer)
        self._numpy_forward = numpy_forward(student) if isinstance(student, Student) else None
        self.is_quick = self._numpy_forward is not None

    def __call__(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> list[Prediction]:
        """Predicts labels, or scores for a task with scores.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for a pair task.

        Returns:
            One dict per input: ``label`` (of a multi-label task the list of labels that hold) and ``probabilities`` by
            label name, or ``score``.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        target, logits_NC = self.student.config.target, self.logits(sentences1, sentences2)
        if not target.has_labels:
            return [{"score": score} for score in predicted_scores(target, logits_NC).tolist()]
        labels = chosen(target, logits_NC, self.threshold, self.bias_C).to_pylist()
        return [
            {"label": label, "probabilities": dict(zip(target.names, row, strict=True))}
            for label, row in zip(labels, probabilities(target, logits_NC).tolist(), strict=True)
        ]

    def logits(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> Floats:
        """What the student says, as numbers: for many sentences several times as fast as dicts.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for a pair task.

        Returns:
            float32 logits [N, C] before softmax, in the order of the labels of ``student.config.target``.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        _check_lists(sentences1, sentences2)
        self._check_pairs(sentences1, sentences2)
        config = self.student.config
        parts = sequences(config, *self.reader.read(sentences1, sentences2, config.max_seq_length))
        if self._numpy_forward is not None and len(parts[0]) <= FEW:
            return self._numpy_forward(parts)
        return in_batches(self.student.logits, parts, config.target.num_logits, self.student.device)

    def columns(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, pa.Array]:
        """The answers as columns: what `predict --file` writes of each input, see `answer_columns`."""
        logits_NC = self.logits(sentences1, sentences2)
        return answer_columns(self.student.config.target, logits_NC, self.threshold, self.bias_C)

    def accepted_columns(self) -> list[tuple[str, ...]]:
        """What the columns of inputs may be called, whatever their task calls them."""
        return [(name,) for name in ("sentence1", "sentence2")[: 1 + self.student.config.is_pair]]

    def input_problem(self, value: object) -> str | None:
        """What is wrong with an input; None if nothing is."""
        return None if isinstance(value, str) else "not text"

    def check_column(self, table: pa.Table, path: str, name: str, problems: list[str], first_row: int) -> None:
        """Adds what is wrong with a column of inputs of a table that begins with that row of its file."""
        from pipeline.sources.columns import checked_text

        checked_text(table, path, name, problems, first_row)

    def explain(self, sentences1: Sequence[str], sentences2: Sequence[str] | None = None) -> list[Prediction]:
        """Predicts, and tells of each word what the answer loses without it: one more sequence is read per word.

        Args:
            sentences1: the (first) sentences.
            sentences2: the second sentences, for a pair task.

        Returns:
            What calling gives, with the list ``words``: a dict for each word, see `student.word_effects.effects`.

        Raises:
            ConfigError: if the student takes pairs and gets single sentences, or the other way round.
        """
        answers, logits_NC = self(sentences1, sentences2), self.logits(sentences1, sentences2)
        words, logits_WC = without_each_word(self.logits, sentences1, sentences2)
        told = effects(self.student.config.target, logits_NC, words, logits_WC)
        return [answer | {"words": row} for answer, row in zip(answers, told, strict=True)]

    def encode(self, sentences: Sequence[str]) -> Floats:
        """What the student makes of each sentence before it compares or judges: its vector.

        Args:
            sentences: also of a student of pairs, each alone.

        Returns:
            float32 [N, F], F = ``student.encoder.size``, not normalised.
        """
        _check_lists(sentences)
        student = self.student
        parts = sequences(student.config, *self.reader.read(sentences, None, student.config.max_seq_length))
        return in_batches(student.encoder.reduce, parts, student.encoder.size, student.device)

    def _check_pairs(self, sentences1: Sequence[str], sentences2: Sequence[str] | None) -> None:
        config = self.student.config
        if config.is_pair != (sentences2 is not None):
            raise ConfigError(f"this student of {config.task!r} takes {'pairs' if config.is_pair else 'one sentence'}")
        if sentences2 is not None and len(sentences1) != len(sentences2):
            raise ConfigError(f"{len(sentences1)} first sentences, but {len(sentences2)} second ones")


def _check_lists(*texts: Sequence[str] | None) -> None:
    if any(isinstance(text, str) for text in texts):
        raise ConfigError("give lists of sentences, not one string")
    if any(hasattr(text, "columns") for text in texts):
        raise ConfigError("give lists of sentences, such as a column of the table, not the table")


def in_batches(ask: Ask, parts: Sequence[Ragged], width: int, device: torch.device) -> Floats:
    """What a part of a student says of inputs, asked about a batch of them at a time.

    Args:
        ask: given ids_T and starts_S, as `Student.logits` takes them.
        parts: the inputs' N sequences, of two per input the second ones apart.
        width: how many numbers it says of an input.
        device: the student's.

    Returns:
        float32 [N, width].
    """
    numbers_NC = np.empty((len(parts[0]), width), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(numbers_NC), BATCH_SIZE):
            stop = min(start + BATCH_SIZE, len(numbers_NC))
            taken = stacked([part.between(start, stop) for part in parts])
            ids_T, starts_S = (torch.from_numpy(part).to(device) for part in (taken.flat, taken.offsets))
            numbers_NC[start:stop] = ask(ids_T, starts_S).cpu().numpy()
    return numbers_NC
