"""From text to labelled words and their spans. The logits of words are those of torch or of the engine.

Shapes: W words of all sentences, C logits.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.arrays import Floats, Floats64
from pipeline.errors import ConfigError, DataError
from pipeline.tasks.spans import spans
from pipeline.tasks.target import softmax
from pipeline.tasks.temperature import calibrated
from student.predict.predictor import Prediction, Predictor
from student.texts import listed

if TYPE_CHECKING:
    import pyarrow as pa

# Zero-width joiners belong to words of Indic and Persian scripts.
MARKS = "".join(chr(k) for k in range(0x300, 0x20000) if unicodedata.category(chr(k)).startswith("M")) + "\u200c\u200d"
# Python's \w excludes combining vowel signs and accents, which would split words of many scripts.
LETTERS = rf"\w[\w{MARKS}]*"
# A word may contain hyphens, apostrophes or dots. Any other sign is a word of its own, as in CoNLL's files.
WORD = re.compile(rf"{LETTERS}(?:[-'\u2019.]{LETTERS})*|[^\w\s][{MARKS}]*")
# A sentence is a text or a list of words, as files for token classification store either.
Sentence = str | Sequence[str]
# These names are common in files for token classification, in addition to the task's own name.
USUAL = ("sentence1", "tokens", "words", "text")


class WordPredictor(Predictor):
    """A trained student that labels words, see `Predictor`. It never abstains.

    Subclasses have another predictor as their second base, which opens the student.
    """

    answer_names: ClassVar[Set[str]] = {"words", "labels", "spans"}

    def _open(self, run: str | Path, abstain: bool, costs: Mapping[str, float], task: str | None) -> None:
        if abstain:
            raise ConfigError("--abstain: a certificate is about whole texts, not for labelled words")
        super()._open(run, abstain, costs, task)

    def __call__(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """Labels the words of sentences, which are read whole, however long.

        Args:
            sentences1: texts, whose words are found by spaces and signs, or lists of words.
            sentences2: none, words are not those of pairs.

        Returns: One dict per sentence: ``words``, with ``text``, ``start`` and ``end`` (positions of characters, for a
            list in its words joined with spaces), ``label`` and its ``probability``. Also ``spans``, with ``text``,
            ``start``, ``end`` and ``label``.

        Raises:
            ConfigError: for a single text instead of a list, or for pairs.
            DataError: if a sentence is neither a text nor a list of words.
        """
        sentences1 = listed(sentences1)
        if sentences2 is not None:
            raise ConfigError(f"this student of {self.info.task!r} labels words, and takes no pairs")
        for number, sentence in enumerate(sentences1):
            if (problem := self.input_problem(sentence)) is not None:
                raise DataError(f"sentence {number} (from 0) is {sentence!r:.80}, {problem}")
        # Words are joined by spaces as in training, so tokens get the same context.
        texts = [sentence if isinstance(sentence, str) else " ".join(sentence) for sentence in sentences1]
        places = [
            [match.span() for match in WORD.finditer(sentence)] if isinstance(sentence, str) else _places(sentence)
            for sentence in sentences1
        ]
        rows = [[text[a:b] for a, b in row] for text, row in zip(texts, places, strict=True)]
        # Words are passed as lists even for texts, so that the answers refer to exactly these words.
        answers = self._answers(self.word_logits(rows), [len(row) for row in rows])
        return [_told(*told) for told in zip(texts, places, answers, strict=True)]

    def word_logits(self, sentences: Sequence[Sequence[str]]) -> Floats:
        """Returns the logits of the words of all sentences, float32 [W, C], not calibrated.

        Those of a word without tokens are as sure as possible that it is outside of spans.
        """
        raise NotImplementedError

    def columns(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None = None) -> "dict[str, pa.Array]":
        """The answers as columns: the ``words``, their ``labels``, and the ``spans`` of each input."""
        import pyarrow as pa  # takes a moment, which one answer does not

        span = pa.struct([("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("label", pa.string())])
        answers = self(sentences1, sentences2)
        words, labels = ([[w[key] for w in one["words"]] for one in answers] for key in ("text", "label"))
        return {
            "words": pa.array(words, pa.list_(pa.string())),
            "labels": pa.array(labels, pa.list_(pa.string())),
            "spans": pa.array([one["spans"] for one in answers], pa.list_(span)),
        }

    def logits(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None = None) -> Floats:
        """Raises ConfigError: whole texts have no logits here."""
        raise ConfigError("this student labels words and gives no logits of whole texts. Call it.")

    def text_signals(self, sentences1: Sequence[Any], sentences2: Sequence[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`."""
        return super().text_signals([one if isinstance(one, str) else " ".join(one) for one in sentences1], None)

    def signals(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None = None) -> dict[str, Floats64]:
        """See `Predictor`. Only texts are compared, because answers are of words."""
        return self.text_signals(listed(sentences1))

    def explain(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None = None) -> list[Prediction]:
        """Raises ConfigError: what a word does to the label of another is not worked out."""
        raise ConfigError("--explain: is not for labelled words")

    def accepted_columns(self) -> list[tuple[str, ...]]:
        """See `Predictor`."""
        return [USUAL]

    def input_problem(self, value: object) -> str | None:
        """See `Predictor`."""
        # A string is a sequence of strings, too, so this check accepts texts and lists of words alike.
        is_list = isinstance(value, Sequence | np.ndarray) and all(isinstance(word, str) for word in value)
        return None if is_list else "neither text nor a list of words"

    def check_column(self, table: "pa.Table", path: str, name: str, problems: list[str], first_row: int) -> None:
        """See `Predictor`."""
        from pipeline.sources.columns import plain

        for number, value in enumerate(plain(table.column(name)).to_pylist(), first_row):
            if (problem := self.input_problem(value)) is not None:
                problems.append(f"{path}: row {number} of {name!r} is {value!r:.80}, {problem}")
                return

    def _answers(self, raw_logits_WC: Floats, num_words: Sequence[int]) -> list[list[tuple[str, float]]]:
        """Returns label and probability of each word, by sentence."""
        logits_WC, names = calibrated(raw_logits_WC, self.info.calibration), self.info.target.names
        if self.bias_C is not None:
            logits_WC = logits_WC + self.bias_C
        certain_W = softmax(logits_WC).max(axis=1)
        answers = [(names[k], float(p)) for k, p in zip(logits_WC.argmax(axis=1), certain_W, strict=True)]
        return [answers[start:stop] for start, stop in pairwise(accumulate(num_words, initial=0))]


def _places(words: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the first and the last position of each word in the joined text."""
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return places


def _told(text: str, places: list[tuple[int, int]], answers: list[tuple[str, float]]) -> Prediction:
    words = [
        {"text": text[a:b], "start": a, "end": b, "label": label, "probability": p}
        for (a, b), (label, p) in zip(places, answers, strict=True)
    ]
    found = [(places[s.start][0], places[s.stop - 1][1], s.name) for s in spans([label for label, _ in answers])]
    return {"words": words, "spans": [{"text": text[a:b], "start": a, "end": b, "label": name} for a, b, name in found]}
