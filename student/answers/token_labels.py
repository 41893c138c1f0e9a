"""From text to labelled words and their spans, by a trained student and its tokenizer alone; also of a file's rows."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.arrays import Floats
from pipeline.config import refuse_flags
from pipeline.errors import ConfigError, DataError, raise_all
from pipeline.files import sha256
from pipeline.sets.kinds.token_labels import labels_of_words
from pipeline.sets.record import TOKENIZER_FILE
from pipeline.sources.columns import column_name
from pipeline.sources.row_files import RowFile, joined_schema, open_rows
from pipeline.tasks.spans import spans
from pipeline.tasks.target import softmax
from pipeline.text.reader import TextReader
from pipeline.text.tokenizer import load_tokenizer
from pipeline.text.word_pieces import Pieces, read_pieces
from pipeline.training.run_record import RUN_RECORD, TEXT_COLUMNS, read_run_record
from student.answers.file import from_row, kept_columns, student_hashes
from student.answers.parts import write_in_parts
from student.config import PredictConfig
from student.kinds.token_labels import logits_of_tokens
from student.model.model import TokenLabelStudent, default_device

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
        self.student = TokenLabelStudent.load(Path(run)).to(default_device())
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


USUAL = ("sentence1", "tokens", "words", "text")  # what the column may be called beside what the task calls it
SPANS = pa.list_(pa.struct([("text", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("label", pa.string())]))
ANSWERS = pa.schema([("words", pa.list_(pa.string())), ("labels", pa.list_(pa.string())), ("spans", SPANS)])


def check_flags(config: PredictConfig) -> None:
    """Raises ConfigError for flags that are for answers about whole texts."""
    refuse_flags(config, {"explain", "abstain", "cost", "manifest"}, "is not for labelled words")
    if config.reads_stdin:
        raise ConfigError("--file -: is not for labelled words; give a file")


def predict_file(config: PredictConfig, predictor: WordPredictor) -> dict[str, Any]:
    """Writes the answers to a file's rows, or goes on with it; all rows are looked at before the first is answered.

    Returns:
        ``rows``, ``output`` and whether it was ``written`` now.

    Raises:
        ConfigError: if a column that is to be kept is not there.
        DataError: if a row cannot be read or holds no words, naming it.
        FingerprintMismatchError: if the output is there, made with other settings.
    """
    assert config.file is not None
    assert config.output is not None
    rows, name = _open(config)
    kept = kept_columns(config.columns, rows.names, str(rows.path), set(ANSWERS.names))
    hashes = {"student": student_hashes(config.run), "file": sha256(config.file)}
    columns = list(dict.fromkeys([name, *kept]))
    sentences, schema = _sentences(rows, name, columns)
    num_rows = len(sentences)
    with console.progress(num_rows, f"predict {config.file.name}") as steps:

        def answered(done: int) -> Iterator[pa.Table]:
            steps.advance(done)
            for table in from_row(rows.batches(columns, schema), done):
                answers = [
                    {
                        "words": [word["text"] for word in answer["words"]],
                        "labels": [word["label"] for word in answer["words"]],
                        "spans": answer["spans"],
                    }
                    for answer in predictor(table.column(name).to_pylist())
                ]
                found = pa.Table.from_pylist(answers, ANSWERS)
                beside = {output: table.column(column) for column, output in kept.items()}
                yield pa.table(beside | dict(zip(found.column_names, found.columns, strict=True)))
                steps.advance(table.num_rows)

        settings = hashes | {"texts": [name], "columns": list(kept)}
        written = write_in_parts(config.output, settings, answered)
    return {"rows": num_rows, "output": str(config.output), "written": written}


def read_sentences(config: PredictConfig) -> list[Sentence]:
    """All texts of a file, or lists of words; errors as of `predict_file`."""
    rows, name = _open(config)
    return _sentences(rows, name, [name])[0]


def _open(config: PredictConfig) -> tuple[RowFile, str]:
    assert config.file is not None
    rows, problems = open_rows(config.file), list[str]()
    own = read_run_record(config.run / RUN_RECORD).get(TEXT_COLUMNS, [[]])[0]
    name = column_name(rows.names, str(config.file), tuple(dict.fromkeys((*own, *USUAL))), problems)
    raise_all(DataError, "no words to label", problems)
    assert name is not None, "or it would be among the problems"
    return rows, name


def _sentences(rows: RowFile, name: str, columns: Sequence[str]) -> tuple[list[Sentence], pa.Schema]:
    """The column of words of all rows, and the types of columns over all of them."""
    sentences: list[Sentence] = []
    schemas: dict[pa.Schema, None] = {}
    for table in rows.batches(columns):
        sentences += table.column(name).to_pylist()
        schemas[table.schema] = None
    problems = [
        f"{rows.path}: row {number} of {name!r} is {sentence!r}, neither a text nor a list of words"
        for number, sentence in enumerate(sentences, 1)
        if not (isinstance(sentence, str) or (isinstance(sentence, list) and all(isinstance(w, str) for w in sentence)))
    ]
    raise_all(DataError, "rows without words", problems[:3])
    return sentences, joined_schema(schemas)
