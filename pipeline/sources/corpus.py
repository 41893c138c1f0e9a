"""The documents of a corpus, in ranges of rows; never more than a batch of them in memory."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import console
from pipeline.environment import data_folder
from pipeline.errors import DataError, did_you_mean
from pipeline.files import sha256
from pipeline.sources.hub_rows import load_rows, place
from pipeline.tasks.task import Corpus

EXTENSIONS = (".parquet", ".jsonl", ".txt")
DOCUMENTS_PER_BATCH = 1024
SAMPLED_ROWS = 1000


class CorpusPart(Protocol):
    """Rows of a corpus's text that come from one file or table."""

    place: str
    num_rows: int
    sha256: str

    def batches(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        """The rows from ``start`` to ``stop`` (exclusive), a batch at a time; they should be text."""


@dataclass(frozen=True)
class Documents:
    """The text of a corpus.

    Attributes:
        description: where it came from, for the record.
        parts: files, or the hub's table, in order.
        num_documents: rows in all parts; at most as many as were asked for.
    """

    description: str
    parts: tuple[CorpusPart, ...]
    num_documents: int

    @property
    def sha256(self) -> str:
        """Hash of what decides the rows: the content of the parts, in order, and how many of them count."""
        content = [*(part.sha256 for part in self.parts), self.num_documents]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def read(self, start: int, stop: int) -> Iterator[tuple[int, list[str]]]:
        """The documents ``start`` to ``stop`` (exclusive), as batches with the number of their first row.

        Where a row has no text, the document is empty.

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
                yield row, texts
                row += len(batch)
            first += part.num_rows


def _is_text(value: Any) -> bool:
    """Whether a value is a string of whole characters; JSON can hold half of one."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def load_documents(corpus: Corpus, data: Path | None = None, max_documents: int | None = None) -> Documents:
    """The text of a corpus, found, with its rows counted and its checksums taken.

    Args:
        corpus: the corpus.
        data: a file, or a folder of Parquet, JSONL or text files; without it ``DISTILL_DATA``, then the hub.
        max_documents: use so many rows from the start.

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
        raise DataError(f"{description}: holds no text")
    return Documents(description, parts, min(num_rows, max_documents or num_rows))


def _local_place(corpus: Corpus) -> Path | None:
    root = data_folder()
    if root is None:
        return None
    names = [root / corpus.name, *(root / f"{corpus.name}{extension}" for extension in EXTENSIONS)]
    existing = next((path for path in names if path.exists()), None)
    if existing is None and corpus.hub is None:
        looked = ", ".join(path.name for path in names)
        raise DataError(f"{root}: holds no text of corpus {corpus.name!r}; looked for {looked}")
    return existing


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        if folder.suffix not in EXTENSIONS:
            raise DataError(f"{folder}: unknown kind of file {folder.suffix!r}; known: {', '.join(EXTENSIONS)}")
        return [folder]
    if not folder.is_dir():
        raise DataError(f"--data {folder}: no such file or folder")
    paths = sorted(path for path in folder.iterdir() if path.suffix in EXTENSIONS and path.is_file())
    if not paths:
        raise DataError(f"{folder}: holds no {', '.join(EXTENSIONS)} file")
    return paths


def _part(path: Path, corpus: Corpus, steps: console.Steps) -> CorpusPart:
    part = ParquetPart(path, corpus) if path.suffix == ".parquet" else LinePart(path, corpus)
    steps.advance()
    return part


class ParquetPart:
    """The text column of a Parquet file."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        self.place, self.sha256 = str(path), sha256(path)
        try:
            # not pre-buffered, so that a large row group is never whole in memory
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error
        self._column = text_column(corpus, self.place, self._file.schema_arrow.names)
        self.num_rows = self._file.metadata.num_rows

    def batches(self, start: int, stop: int) -> Iterator[list[Any]]:
        """The rows from ``start`` to ``stop`` (exclusive), see `CorpusPart.batches`."""
        try:
            yield from self._batches(start, stop)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.place}: cannot be read: {str(error).splitlines()[0]}") from error

    def _batches(self, start: int, stop: int) -> Iterator[list[Any]]:
        first = 0
        for group in range(self._file.num_row_groups):
            last = first + self._file.metadata.row_group(group).num_rows
            if first < stop and start < last:
                row = first
                for batch in self._file.iter_batches(DOCUMENTS_PER_BATCH, [group], [self._column]):
                    low, high = max(start, row), min(stop, row + batch.num_rows)
                    if low < high:
                        yield batch.column(0).slice(low - row, high - low).to_pylist()
                    row += batch.num_rows
                    if row >= stop:
                        break
            first = last


class LinePart:
    """A file with a document on each line: plain text, or JSON objects."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        self.place, self.sha256, self.num_rows = str(path), sha256(path), 0
        self._path, self._corpus = path, corpus
        self._offsets: list[int] = []  # where every so many lines begin
        offset = 0
        with path.open("rb") as stream:
            for line in stream:
                if self.num_rows % DOCUMENTS_PER_BATCH == 0:
                    self._offsets.append(offset)
                offset += len(line)
                self.num_rows += 1

    def batches(self, start: int, stop: int) -> Iterator[list[Any]]:
        """The rows from ``start`` to ``stop`` (exclusive), see `CorpusPart.batches`."""
        with self._path.open("rb") as stream:
            for number in range(start // DOCUMENTS_PER_BATCH, -(-stop // DOCUMENTS_PER_BATCH)):
                row = number * DOCUMENTS_PER_BATCH
                stream.seek(self._offsets[number])
                lines = [stream.readline() for _ in range(min(DOCUMENTS_PER_BATCH, self.num_rows - row))]
                wanted = lines[max(0, start - row) : stop - row]
                yield [self._text(line, k) for k, line in enumerate(wanted, start=max(start, row))]

    def _text(self, line: bytes, row: int) -> Any:
        try:
            text = line.decode("utf-8-sig" if row == 0 else "utf-8").rstrip("\r\n")
            if self._path.suffix == ".txt" or not text.strip():  # JSON lines may be empty, too
                return text
            values = json.loads(text)
            return values[text_column(self._corpus, f"{self.place}, row {row}", list(values))]
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{self.place}, row {row} (line {row + 1}): cannot be read: {error}") from error


class TablePart:
    """The text column of a hub data set, memory-mapped by `datasets`."""

    def __init__(self, corpus: Corpus) -> None:
        if corpus.hub is None:
            raise DataError(f"corpus {corpus.name!r} has no hub data set: give its text with --data or DISTILL_DATA")
        rows = load_rows(corpus.hub, corpus.hub_split)
        self.place = f"{place(corpus.hub)}:{corpus.hub_split}"
        self._table: pa.Table = rows.data.table.select([text_column(corpus, self.place, rows.column_names)])
        self.num_rows = len(rows)
        # of a sample: reading all of it once more to hash it would take hours
        column = self._table.column(0)  # row by row: `take` would join all of its chunks, which may be too long
        sampled = np.unique(np.linspace(0, self.num_rows - 1, SAMPLED_ROWS).astype(int))
        content = [corpus.hub.id, corpus.hub.config, corpus.hub.revision, self.num_rows, rows.info.dataset_size]
        content += [column[row].as_py() for row in sampled.tolist()]
        self.sha256 = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def batches(self, start: int, stop: int) -> Iterator[list[Any]]:
        """The rows from ``start`` to ``stop`` (exclusive), see `CorpusPart.batches`."""
        for low in range(start, stop, DOCUMENTS_PER_BATCH):
            yield self._table.column(0).slice(low, min(DOCUMENTS_PER_BATCH, stop - low)).to_pylist()


def text_column(corpus: Corpus, place: str, names: Sequence[str]) -> str:
    """The name of the first of the corpus's columns that a file or table has.

    Raises:
        DataError: if none is.
    """
    column = next((name for name in corpus.columns if name in names), None)
    if column is None:
        wanted = " or ".join(repr(name) for name in corpus.columns)
        raise DataError(f"{place}: no column {wanted}; {did_you_mean(corpus.columns[0], names)}")
    return column
