"""From logits to labelled words and their spans.

Shapes: W words of all sentences, C logits.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence, Set
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.arrays import Floats, Floats64
from pipeline.errors import ConfigError, DataError
from pipeline.tasks.spans import spans
from pipeline.tasks.target import softmax
from pipeline.tasks.temperature import calibrated
from student.predict.student_info import StudentInfo
from student.predict.text_answers import Prediction, TextAnswers
from student.texts import Texts, is_sequence, listed

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


class WordAnswers(TextAnswers):
    """The answers of a student that labels words. It never abstains."""

    names: ClassVar[Set[str]] = {"words", "labels", "spans"}

    def texts(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None) -> Texts:
        """The sentences, each a text or a list of words.

        Raises:
            ConfigError: for a single text instead of a list, or for pairs.
            DataError: if a sentence is neither a text nor a list of words.
        """
        sentences = listed(sentences1)
        if sentences2 is not None:
            raise ConfigError(f"this student of {self.info.task!r} labels words, and takes no pairs")
        for number, sentence in enumerate(sentences):
            if (problem := self.input_problem(sentence)) is not None:
                raise DataError(f"sentence {number} (from 0) is {sentence!r:.80}, {problem}")
        return [sentence if isinstance(sentence, str) else listed(sentence) for sentence in sentences], None

    def predictions(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None) -> list[Prediction]:
        """Labels the words of sentences, which are read whole, however long.

        Args:
            sentences1: texts, whose words are found by spaces and signs, or lists of words.
            sentences2: none, words are not those of pairs.

        Returns: One dict per sentence: ``words``, with ``text``, ``start`` and ``end`` (positions of characters, for a
            list in its words joined with spaces), ``label`` and its ``probability``. Also ``spans``, with ``text``,
            ``start``, ``end`` and ``label``.
        """
        sentences, _ = self.texts(sentences1, sentences2)
        texts = _joined(sentences)
        places = [
            [match.span() for match in WORD.finditer(sentence)] if isinstance(sentence, str) else _places(sentence)
            for sentence in sentences
        ]
        rows = [[text[a:b] for a, b in row] for text, row in zip(texts, places, strict=True)]
        # Words are passed as lists even for texts, so that the answers refer to exactly these words.
        answers = self._answers(self.backend.word_logits(rows), [len(row) for row in rows])
        return [_with_spans(*one) for one in zip(texts, places, answers, strict=True)]

    def columns(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None) -> "dict[str, pa.Array]":
        """The answers as columns: the ``words``, their ``labels``, and the ``spans`` of each input."""
        import pyarrow as pa  # takes a moment, which one answer does not

        span = pa.struct([("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("label", pa.string())])
        answers = self.predictions(sentences1, sentences2)
        words, labels = ([[w[key] for w in one["words"]] for one in answers] for key in ("text", "label"))
        return {
            "words": pa.array(words, pa.list_(pa.string())),
            "labels": pa.array(labels, pa.list_(pa.string())),
            "spans": pa.array([one["spans"] for one in answers], pa.list_(span)),
        }

    def logits(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None) -> Floats:
        """Raises ConfigError: whole texts have no logits here."""
        raise ConfigError("this student labels words and gives no logits of whole texts. Call it.")

    def signals(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None) -> dict[str, Floats64]:
        """Returns those of texts alone, because answers are of words."""
        sentences, _ = self.texts(sentences1, sentences2)
        return self.backend.text_signals(_joined(sentences), None)

    def explain(self, sentences1: Iterable[Sentence], sentences2: Iterable[str] | None) -> list[Prediction]:
        """Raises ConfigError: what a word does to the label of another is not worked out."""
        raise ConfigError("--explain: is not for labelled words")

    def accepted_columns(self) -> list[tuple[str, ...]]:
        return [USUAL]

    def input_problem(self, value: Any) -> str | None:
        is_list = is_sequence(value) and all(isinstance(word, str) for word in listed(value))
        return None if is_list or isinstance(value, str) else "neither text nor a list of words"

    def check_column(self, table: "pa.Table", path: str, name: str, problems: list[str], first_row: int) -> None:
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


def _joined(sentences: Sequence[Sentence]) -> list[str]:
    # Words are joined by spaces as in training, so tokens get the same context.
    return [sentence if isinstance(sentence, str) else " ".join(sentence) for sentence in sentences]


def _places(words: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the first and the last position of each word in the joined text."""
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return places


def _with_spans(text: str, places: list[tuple[int, int]], answers: list[tuple[str, float]]) -> Prediction:
    words = [
        {"text": text[a:b], "start": a, "end": b, "label": label, "probability": p}
        for (a, b), (label, p) in zip(places, answers, strict=True)
    ]
    found = [(places[s.start][0], places[s.stop - 1][1], s.name) for s in spans([label for label, _ in answers])]
    return {"words": words, "spans": [{"text": text[a:b], "start": a, "end": b, "label": name} for a, b, name in found]}


def answers_of(info: StudentInfo) -> type[TextAnswers]:
    """Returns what makes answers of a student's logits."""
    return WordAnswers if info.labels_words else TextAnswers
