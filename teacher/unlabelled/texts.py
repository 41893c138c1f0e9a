"""Opens unlabelled text: files with columns, files with lines, or a corpus by name."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from sentencex import segment

from pipeline import console
from pipeline.arrays import hashed
from pipeline.errors import ConfigError, DataError, did_you_mean, raise_all
from pipeline.files import sha256
from pipeline.sources import load_documents
from pipeline.sources.columns import text_column
from pipeline.sources.row_files import FORMATS, open_rows
from pipeline.sources.saved_rows import row_files
from pipeline.tasks.task import Task, corpus_names, load_corpus

TEXT = "text"  # the column of texts without the task's column names
DOCUMENTS_PER_BLOCK = 64
SPARE = 1.25  # factor on the requested rows, because some will be left out


@dataclass(frozen=True)
class Texts:
    """Columns of text, as they were found.

    Attributes:
        description: their origin, for the record.
        sha256: hash of the content of the files or of the corpus.
        columns: for files one column of texts, or the first and the second sentences of pairs. Empty for a corpus.
        places: each file and the number of its first row, for messages.
        documents: for a corpus the sentences of each document.
    """

    description: str
    sha256: str
    columns: tuple[pa.Array, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    documents: tuple[list[str], ...] = ()


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text."""
    return [sentence.strip() for sentence in segment(language, text) if sentence.strip()]


def find_texts(place: str, task: Task, max_rows: int | None, seed: int, wants_pairs: bool | None) -> Texts:
    """Returns the text in a file or a folder, or of a corpus by name.

    Args:
        place: the value of ``--unlabelled``.
        task: the task, whose columns the text may have.
        max_rows: the requested number of rows, for a corpus.
        seed: the seed for choosing a corpus's documents.
        wants_pairs: whether there must be two columns, one column, or either.

    Raises:
        ConfigError: if there is no such place, or a corpus has no requested number of rows.
        DataError: if a file cannot be read, lacks a column, or a row of it is not text.
    """
    path = Path(place)
    if path.exists():
        return _of_files(path, task, wants_pairs)
    if place not in corpus_names():
        known = did_you_mean(place, corpus_names())
        raise ConfigError(f"--unlabelled {place}: no such file, folder or corpus. {known}")
    if max_rows is None:
        raise ConfigError(f"--unlabelled {place}: Give the number of rows of this corpus with --max-unlabelled")
    if wants_pairs:
        raise ConfigError("--unlabelled-pairs columns: needs files with two columns, not a corpus")
    return _of_corpus(place, max_rows, seed)


def _of_files(path: Path, task: Task, wants_pairs: bool | None) -> Texts:
    paths = row_files(path, FORMATS) if path.is_dir() else [path]
    if not paths:
        raise DataError(f"--unlabelled {path}: contains no {', '.join(FORMATS)} file")
    files = [open_rows(p, line_column=TEXT) for p in paths]
    names = _names(task, [file.names for file in files], wants_pairs)
    tables = [file.wanted({name for accepted in names for name in accepted}) for file in files]
    problems: list[str] = []
    columns = tuple(
        pa.concat_arrays([text_column(t, str(p), accepted, problems) for p, t in zip(paths, tables, strict=True)])
        for accepted in names
    )
    raise_all(DataError, "--unlabelled", problems)
    starts = np.cumsum([0, *(table.num_rows for table in tables[:-1])]).tolist()
    digest = hashlib.sha256("".join(sha256(p) for p in paths).encode()).hexdigest()
    return Texts(str(path), digest, columns, tuple(zip(map(str, paths), starts, strict=True)))


def _names(task: Task, found: Sequence[list[str]], wants_pairs: bool | None) -> list[tuple[str, ...]]:
    """Returns the accepted names of each column. For pairs, a single column of texts must be called ``text``."""
    first = _distinct(*task.columns.sentence1, "sentence1")
    if task.columns.sentence2 is None:
        return [_distinct(*first, TEXT)]
    pair = [first, _distinct(*task.columns.sentence2, "sentence2")]
    has_text = all(TEXT in names for names in found)
    is_pair = all(any(name in names for name in accepted) for accepted in pair for names in found)
    return [(TEXT,)] if wants_pairs is False or (wants_pairs is None and has_text and not is_pair) else pair


def _distinct(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _of_corpus(name: str, max_rows: int, seed: int) -> Texts:
    """Returns documents of a corpus, in random order by blocks, until they have enough sentences."""
    corpus = load_corpus(name)
    documents = load_documents(corpus)
    wanted = int(SPARE * max_rows) + 1
    chosen: dict[int, list[list[str]]] = {}
    blocks = np.argsort(hashed(seed, np.arange(-(-documents.num_documents // DOCUMENTS_PER_BLOCK))), kind="stable")
    with console.progress(wanted, "sentences") as steps:
        for block in blocks.tolist():
            start = block * DOCUMENTS_PER_BLOCK
            stop = min(start + DOCUMENTS_PER_BLOCK, documents.num_documents)
            read = (text for _, texts in documents.read(start, stop) for text in texts)
            chosen[start] = [split_sentences(text, corpus.language) for text in read]
            found = sum(map(len, chosen[start]))
            steps.advance(found)
            wanted -= found
            if wanted <= 0:
                break
    in_order = tuple(sentences for start in sorted(chosen) for sentences in chosen[start])
    return Texts(documents.description, documents.sha256, documents=in_order)
