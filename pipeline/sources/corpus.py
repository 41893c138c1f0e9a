"""The documents of a corpus, in ranges of rows. At most a batch of them is in memory."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipeline import console
from pipeline.environment import data_folder
from pipeline.errors import DataError, did_you_mean
from pipeline.files import sha256
from pipeline.sources.columns import blank, plain
from pipeline.sources.hugging_face_rows import is_rows, load_rows, place, row_files
from pipeline.sources.row_bytes import ending, stem
from pipeline.sources.row_files import FORMATS, open_rows
from pipeline.tasks.task import Corpus

DOCUMENTS_PER_BATCH = 1024
SAMPLED_ROWS = 1000


class CorpusPart(Protocol):
    """Rows of a corpus's text from one file or table."""

    place: str
    num_rows: int
    sha256: str

    def batches(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        """Yields the rows from ``start`` to ``stop`` (exclusive) in batches. They should be text."""


@dataclass(frozen=True)
class Documents:
    """The text of a corpus.

    Attributes:
        description: its origin, for the record.
        parts: files, or the hub's table, in order.
        num_documents: rows in all parts, at most the requested number.
    """

    description: str
    parts: tuple[CorpusPart, ...]
    num_documents: int

    @property
    def sha256(self) -> str:
        """Returns a hash of what determines the rows: the content of the parts and the number of documents."""
        content = [*(part.sha256 for part in self.parts), self.num_documents]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def read(self, start: int, stop: int) -> Iterator[tuple[int, list[str]]]:
        """The documents ``start`` to ``stop`` (exclusive), as batches with the number of their first row.

        Where a row has no text or only spaces, the document is empty.

        Raises:
            DataError: if a row is not text, with its place.
        """
        first = 0
        for part in self.parts:
            low, high = max(start, first), min(stop, first + part.num_rows)
            row = low
            for batch in part.batches(low - first, high - first) if low < high else ():
                texts = ["" if text is None else text for text in batch]
                for number, text in enumerate(texts, start=row - first):
                    if not _is_text(text):
                        raise DataError(f"{part.place}, row {number}: {text!r} is not text")
                are_blank = blank(pa.array(texts, pa.string())).to_pylist()
                yield row, ["" if is_blank else text for text, is_blank in zip(texts, are_blank, strict=True)]
                row += len(batch)
            first += part.num_rows


def _is_text(value: Any) -> bool:
    """Whether a value is a string of complete characters. JSON can contain half of one."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def load_documents(corpus: Corpus, data: Path | None = None, max_documents: int | None = None) -> Documents:
    """Finds the text of a corpus, counts its rows and computes its checksums.

    Args:
        corpus: the corpus.
        data: a file, or a folder of files, in any of the `FORMATS`. Default: ``DISTILL_DATA``, then the hub.
        max_documents: the number of rows to use, from the start.

    Raises:
        DataError: if nothing is found, a file cannot be read, or there is no text column.
    """
    folder = data or _local_place(corpus)
    parts: tuple[CorpusPart, ...]
    if folder is None:
        parts = (TablePart(corpus),)
        description = parts[0].place
    else:
        description = str(folder)
        paths = _files(folder)
        with console.progress(len(paths), "checksums") as steps:
            parts = tuple(_part(path, corpus, steps) for path in paths)
    num_rows = sum(part.num_rows for part in parts)
    if not num_rows:
        raise DataError(f"{description}: contains no text")
    return Documents(description, parts, min(num_rows, max_documents or num_rows))


def _local_place(corpus: Corpus) -> Path | None:
    """Returns the corpus's folder or file in ``DISTILL_DATA``. The order of `FORMATS` decides between several files."""
    root = data_folder()
    if root is None:
        return None
    if (root / corpus.name).exists():
        return root / corpus.name
    there = [path for path in sorted(root.glob("*")) if is_rows(path, FORMATS) and stem(path) == corpus.name]
    if not there and corpus.hub is None:
        looked = ", ".join([corpus.name, *(f"{corpus.name}{kind}" for kind in FORMATS)])
        raise DataError(f"{root}: contains no text of corpus {corpus.name!r}. Expected {looked}")
    return min(there, key=lambda path: list(FORMATS).index(ending(path)), default=None)


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise DataError(f"--data {folder}: no such file or folder")
    paths = row_files(folder, FORMATS)
    if not paths:
        raise DataError(f"{folder}: contains no {', '.join(FORMATS)} file")
    return [path for path in paths if path.stat().st_size]


def _part(path: Path, corpus: Corpus, steps: console.Steps) -> CorpusPart:
    part = FilePart(path, corpus)
    steps.advance()
    return part


class FilePart:
    """The text column of a file."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        self._rows = open_rows(path, line_column=corpus.columns[0])
        self.place, self.sha256, self.num_rows = str(path), sha256(path), self._rows.count()
        self._column = text_column(corpus, self.place, self._rows.names)

    def batches(self, start: int, stop: int) -> Iterator[list[Any]]:
        """Yields the rows from ``start`` to ``stop`` (exclusive). See `CorpusPart.batches`."""
        wanted = stop - start
        for table in self._rows.batches([self._column], start=start):
            for low in range(0, min(wanted, table.num_rows), DOCUMENTS_PER_BATCH):
                yield plain(table.column(0).slice(low, min(DOCUMENTS_PER_BATCH, wanted - low))).to_pylist()
            wanted -= min(wanted, table.num_rows)
            if not wanted:
                return


class TablePart:
    """The text column of a hub data set, memory-mapped by `datasets`."""

    def __init__(self, corpus: Corpus) -> None:
        if corpus.hub is None:
            raise DataError(f"corpus {corpus.name!r} has no hub data set. Give its text with --data or DISTILL_DATA")
        rows = load_rows(corpus.hub, corpus.hub_split)
        self.place = f"{place(corpus.hub)}:{corpus.hub_split}"
        self._table: pa.Table = rows.data.table.select([text_column(corpus, self.place, rows.column_names)])
        self.num_rows = len(rows)
        # of a sample, because hashing everything would take hours
        column = self._table.column(0)  # row by row: `take` would join all of its chunks, which may be too long
        sampled = np.unique(np.linspace(0, self.num_rows - 1, SAMPLED_ROWS).astype(int))
        content = [corpus.hub.id, corpus.hub.config, corpus.hub.revision, self.num_rows, rows.info.dataset_size]
        content += [column[row].as_py() for row in sampled.tolist()]
        self.sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def batches(self, start: int, stop: int) -> Iterator[list[Any]]:
        """Yields the rows from ``start`` to ``stop`` (exclusive). See `CorpusPart.batches`."""
        for low in range(start, stop, DOCUMENTS_PER_BATCH):
            yield self._table.column(0).slice(low, min(DOCUMENTS_PER_BATCH, stop - low)).to_pylist()


def text_column(corpus: Corpus, place: str, names: Sequence[str]) -> str:
    """Returns the first of the corpus's column names that a file or table has.

    Raises:
        DataError: if none is.
    """
    column = next((name for name in corpus.columns if name in names), None)
    if column is None:
        wanted = " or ".join(repr(name) for name in corpus.columns)
        raise DataError(f"{place}: no column {wanted}. {did_you_mean(corpus.columns[0], names)}")
    return column
