"""From text to labelled words and their spans, by a trained student and its tokenizer alone."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.arrays import Floats
from pipeline.errors import ConfigError, DataError
from pipeline.sets.record import TOKENIZER_FILE
from pipeline.sets.word_reader import labels_of_words
from pipeline.tasks.spans import spans
from pipeline.tasks.target import softmax
from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import load_tokenizer
from pipeline.text.word_pieces import Pieces, read_pieces
from student.model.model import default_device
from student.words.evaluate import logits_of_tokens
from student.words.model import Tagger

MARKS = "".join(chr(k) for k in range(0x300, 0x20000) if unicodedata.category(chr(k)).startswith("M")) + "\u200c\u200d"
LETTERS = rf"\w[\w{MARKS}]*"  # Python counts vowel signs and accents of their own as no letters
WORD = re.compile(
    rf"{LETTERS}(?:[-'\u2019.]{LETTERS})*|[^\w\s][{MARKS}]*"
)  # also with a hyphen between; or a single sign
Prediction = dict[str, Any]
Sentence = str | Sequence[str]


class WordPredictor:
    """A trained student that labels words.

    Args:
        run: folder of a finished run.

    Raises:
        IntegrityError: if the folder holds no student of words.
    """

    def __init__(self, run: str | Path) -> None:
        self.student = Tagger.load(Path(run)).to(default_device())
        self.student.encoder.lay_out()
        tokenizer = load_tokenizer(Path(run) / TOKENIZER_FILE, self.student.config.tokenizer_sha256)
        self.reader = TextReader.of(tokenizer)

    def __call__(self, sentences: Sequence[Sentence]) -> list[Prediction]:
        """Labels the words of sentences, which are read whole, however long.

        Args:
            sentences: texts, whose words are found by spaces and signs, or lists of words.

        Returns:
            One dict per sentence: ``words``, with ``text``, ``start``, ``end`` (places of characters, of a list in its
            words with a space between each two), ``label`` and its ``probability``; and ``spans``, with ``text``,
            ``start``, ``end`` and ``label``.

        Raises:
            ConfigError: if it is given one text, and no list.
            DataError: if a sentence is neither a text nor a list of words.
        """
        if isinstance(sentences, str):
            raise ConfigError("give a list of sentences, not one string")
        _require_words(sentences)
        texts = [sentence if isinstance(sentence, str) else " ".join(sentence) for sentence in sentences]
        places = [
            [match.span() for match in WORD.finditer(sentence)] if isinstance(sentence, str) else _places(sentence)
            for sentence in sentences
        ]
        rows = [[text[a:b] for a, b in row] for text, row in zip(texts, places, strict=True)]
        pieces = read_pieces(self.reader, rows)
        logits_TC = logits_of_tokens(self.student, pieces.ids)
        answers = self._answers(pieces, [len(row) for row in rows], logits_TC)
        return [_told(*told) for told in zip(texts, places, answers, strict=True)]

    def _answers(self, pieces: Pieces, num_words: list[int], logits_TC: Floats) -> list[list[tuple[str, float]]]:
        """Of each word its label, and how likely that is; a word without tokens is surely outside of spans."""
        names = self.student.config.target.names
        num_words_N = np.array(num_words, dtype=np.int64)
        said = labels_of_words(names, pieces, num_words_N, logits_TC)
        token = pieces.by_word(np.arange(len(logits_TC)), num_words_N, -1)
        certain_T = np.append(softmax(logits_TC).max(axis=1), np.float32(1))
        return [
            [(names[k], float(certain_T[t])) for k, t in zip(*row, strict=True)]
            for row in zip(said.lists(), token.lists(), strict=True)
        ]


def _require_words(sentences: Sequence[Sentence]) -> None:
    for number, sentence in enumerate(sentences):
        is_list = isinstance(sentence, Sequence | np.ndarray) and all(isinstance(word, str) for word in sentence)
        if not is_list:  # a text is a list of texts, too
            raise DataError(f"sentence {number} (from 0) is {sentence!r}, neither text nor a list of words")


def _places(words: Sequence[str]) -> list[tuple[int, int]]:
    """Where words stand in their text."""
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
