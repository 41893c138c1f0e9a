"""The interface of a kind of rows: how the rows of its sets are checked, queried and described.

Each kind is one class in one file of `pipeline.sets.kinds`. Code for sets of any kind uses `kind_of` there, so a new
kind needs no change outside its file and the table of formats.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.arrays import Bools, Ints
from pipeline.parquet import read_groups
from pipeline.sets.file_columns import FILE, file_column_names
from pipeline.sets.record import SetRecord
from pipeline.sets.record_parts import Shard
from pipeline.sets.registry import FORMATS, TEXT_HASH_BYTES
from pipeline.sources.source import hash_rows
from pipeline.sql.database import view_name
from pipeline.sql.read_only_query import parquet, quoted

if TYPE_CHECKING:
    from pipeline.text.text_to_ids import TextReader


# Each split is a branch of its own, so that a condition on the split takes the other branches out of the plan: their
# rows are never read. The same holds for the sets of a view on all of them.
WITH_FILE_COLUMNS = "select * from ({rows}) left join {kept} using (split, source_row)"
SPLIT_ROWS = "select {split} as split, {columns} from {files}"
Key = tuple[int, ...]  # key of a row, without its split


@dataclass(frozen=True)
class View:
    """A SQL view on the files of a set.

    Attributes:
        name: its name in SQL.
        sql: the statement that creates it.
        needs_vocabulary: whether the statement reads the table ``vocabulary`` of the catalog.
    """

    name: str
    sql: str
    needs_vocabulary: bool = False


class RowKind(ABC):
    """A kind of rows.

    Attributes:
        name: its name in records and in `FORMATS`, and the folder of its shards.
        can_be_truncated: whether its sets contain truncated rows, which were too long for the teacher.
        source_rows: the things that ``source_row`` counts, for messages.
        page_title: the title of the page about a set of this kind.
        sql_templates: the statements of its additional views. A catalog made with other statements is outdated.
        has_common_view: whether the catalog has a view on all sets of this kind, under the name of the kind.
    """

    name: ClassVar[str]
    can_be_truncated: ClassVar[bool] = False
    source_rows: ClassVar[str] = "source rows"
    page_title: ClassVar[str]
    sql_templates: ClassVar[tuple[str, ...]] = ()
    has_common_view: ClassVar[bool] = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows are joined. See `RowFormat`."""
        return FORMATS[self.name].keys

    @abstractmethod
    def encodings(self, record: SetRecord) -> dict[str, Any]:
        """The arguments of `pyarrow.parquet.ParquetWriter` that set the encoding of each column."""

    @abstractmethod
    def problem(self, record: SetRecord, shard: Shard, rows: pa.Table) -> str | None:
        """Returns the problem of some rows of a shard apart from their keys, or None."""

    def check(self, record: SetRecord) -> "RowsCheck":
        """Returns a check of all rows of a set. A kind with further sums over shards has its own class."""
        return RowsCheck(self, record)

    def is_hashed(self, record: SetRecord) -> bool:
        """Whether the hash of the source rows in the record can be compared with the set's rows."""
        return False

    def hashed_rows(self, rows: pa.Table) -> Iterable[pa.RecordBatch]:
        """Returns the source rows among some rows, with the columns of `rows_sha256`."""
        return ()

    def end_problem(self, record: SetRecord, shard: Shard, num_rows: int) -> str | None:
        """Returns the problem of a shard as a whole, once its rows are sound, or None."""
        return None

    def file_problem(self, path: Path) -> str | None:
        """Returns the problem of a shard's file as a whole, without its rows, or None."""
        return None

    def batches(self, record: SetRecord, path: Path) -> Iterator[tuple[str, pa.Table]]:
        """Yields the rows of a file in the batches of the check, each with its place for messages."""
        for number, rows in enumerate(read_groups(path)):
            yield f"row group {number}: ", rows

    def key_problem(self, record: SetRecord, shard: Shard, rows: pa.Table, last: Key) -> str | None:
        """Returns the problem of the keys of some rows, given the previous key.

        None if they ascend within the shard.
        """
        keys = self.key_columns(rows)
        ascends_R = _ascends(keys, last)
        if not ascends_R.all():
            row = int(np.flatnonzero(~ascends_R)[0])
            return f"its keys do not ascend at source row {keys[0][row]}, so a row may be repeated"
        if ((keys[0] < shard.start) | (keys[0] >= shard.stop)).any():
            return f"contains {self.source_rows} outside {shard.start:,} to {shard.stop:,}"
        return None

    def key_columns(self, rows: pa.Table) -> list[Ints]:
        """Returns the key columns of some rows, without the split, which is constant in a shard."""
        return [rows.column(name).to_numpy() for name in self.keys[1:]]

    def num_truncated(self, path: Path, reader: "TextReader", room: int, by_windows: bool) -> int:
        """Returns how many rows of a file have more tokens than the teacher's input. See `can_be_truncated`."""
        return 0

    def training_ids(self, path: Path) -> list[pa.ChunkedArray]:
        """Yields the columns of ids whose tokens count as text of training rows."""
        return [pq.read_table(path, columns=["ids"], partitioning=None).column("ids")]

    def views(self, root: Path, record: SetRecord) -> list[View]:
        """Returns the views on a set in the catalog. The most readable one is the last."""
        columns = ", ".join(self.view_columns(record))
        branches = []
        for split in dict.fromkeys(shard.split for shard in record.shards):
            files = parquet([root / shard.path for shard in record.shards_of(split)])
            branches.append(SPLIT_ROWS.format(split=quoted(split), columns=columns, files=files))
        name, rows = view_name(root.name), " union all ".join(branches)
        if file_column_names(root):
            rows = WITH_FILE_COLUMNS.format(rows=rows, kept=parquet([root / FILE]))
        return [View(name, f'create view "{name}" as {rows}')]

    def view_columns(self, record: SetRecord) -> list[str]:
        """Returns the columns of the view on the rows in SQL, without the split."""
        return [name for name in record.arrow_schema().names if name != "split"]

    def common_view(self, sets: Sequence[tuple[str, SetRecord]]) -> View:
        """Returns the view on the rows of several sets from the name and the record of each. See `has_common_view`."""
        raise NotImplementedError

    @abstractmethod
    def summary(self, record: SetRecord) -> str:
        """Returns the content of a set as a sentence."""

    def card_template(self) -> str:
        """Returns the Jinja template of a set's card. The macros of ``card_parts.md`` are in scope."""
        return files("pipeline.sets.kinds").joinpath(f"{self.name}.md").read_text(encoding="utf-8")


class RowsCheck:
    """Checks the rows of a set, shard by shard, and hashes those that its record has a hash of."""

    def __init__(self, kind: RowKind, record: SetRecord) -> None:
        self._kind, self.record = kind, record
        self.digests: defaultdict[str, hashlib._Hash] = defaultdict(hashlib.sha256)

    def begin(self, shard: Shard) -> None:
        """Starts a shard, before its first row."""

    def add(self, shard: Shard, rows: pa.Table) -> None:
        """Adds up sound rows of a shard."""
        if self._kind.is_hashed(self.record):
            for batch in self._kind.hashed_rows(rows):
                hash_rows(self.digests[shard.split], batch)

    def end_problem(self, shard: Shard, num_rows: int) -> str | None:
        return self._kind.end_problem(self.record, shard, num_rows)

    def split_problems(self) -> list[str]:
        """Returns the problems of whole splits, once every shard is sound."""
        return [
            f"split {split!r}: its texts and gold are not those whose hash distill.json gives"
            for split, described in self.record.splits.items()
            # The hash covers all rows in order, so with absent rows it cannot be computed.
            if self._kind.is_hashed(self.record)
            and not described.absent
            and self.digests[split].hexdigest() != described.rows_sha256
        ]

    def shard_problem(self, shard: Shard, path: Path) -> str | None:
        """Returns the problem of the first wrong batch of rows in a shard, or None."""
        problem = self._kind.file_problem(path)
        if problem:
            return problem
        self.begin(shard)
        # Source rows start at 0, so -1 is below every possible key.
        num_rows, last = 0, (-1, *(0 for _ in self._kind.keys[2:]))
        for place, rows in self._kind.batches(self.record, path):
            if not rows.num_rows:
                continue
            problem = self._kind.key_problem(self.record, shard, rows, last)
            # Keys are checked first: later checks and messages rely on them to name a row.
            problem = problem or self._kind.problem(self.record, shard, rows)
            if problem:
                return place + problem
            self.add(shard, rows)
            last = tuple(int(key_R[-1]) for key_R in self._kind.key_columns(rows))
            num_rows += rows.num_rows
        # The number in the footer may be false, so the rows that were read are counted.
        if num_rows != shard.rows:
            return f"{num_rows:,} rows, but distill.json has {shard.rows or 0:,}"
        return self.end_problem(shard, num_rows)


def _ascends(keys: Sequence[Ints], last: Key) -> Bools:
    """Returns which keys are greater than the previous key [R]. Columns are compared from left to right."""
    ascends_R, is_equal_R = np.zeros(len(keys[0]), dtype=bool), np.ones(len(keys[0]), dtype=bool)
    for key_R, number in zip(keys, last, strict=True):
        before_R = np.concatenate([[number], key_R[:-1]])
        # Lexicographic order: a later column decides only where all earlier ones are equal.
        ascends_R |= is_equal_R & (key_R > before_R)
        is_equal_R &= key_R == before_R
    return ascends_R


def ids_problem(record: SetRecord, name: str, ids: pa.Array) -> str | None:
    """Returns the problem of a column of lists of ids: nulls, too many tokens, or an id beyond the vocabulary."""
    if ids.null_count or ids.flatten().null_count:
        return f"{name} is null somewhere"
    if (pc.max(pc.list_value_length(ids)).as_py() or 0) > record.max_seq_length:
        return f"{name} has more than {record.max_seq_length} tokens somewhere"
    if (pc.max(ids.flatten()).as_py() or 0) >= record.tokenizer.vocabulary_size:
        return f"{name} contains an id beyond the tokenizer's vocabulary of {record.tokenizer.vocabulary_size:,}"
    return None


def signals_problem(record: SetRecord, rows: pa.Table) -> str | None:
    """Returns the problem of the columns of the signals, such as a number that is not finite, or None."""
    problems = (signal.problem(rows) for signal in record.signals.stored)
    return next((problem for problem in problems if problem), None)


def hash_of_texts(*parts: str) -> bytes:
    """Returns a hash of texts in their order, 16 bytes of BLAKE2b. One text never has the hash input of several."""
    digest = hashlib.blake2b(digest_size=TEXT_HASH_BYTES)
    for part in parts:
        # Texts from JSON files may contain lone surrogates, which plain UTF-8 refuses.
        data = part.encode("utf-8", "surrogatepass")
        # The length before each text keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
