"""Opens sets and reads their rows, after verification, by key and with an optional SQL condition."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from pipeline.console import Rows
from pipeline.environment import store_folder
from pipeline.errors import ConfigError, DataError, IntegrityError, did_you_mean
from pipeline.file_names import TOKENIZER_FILE
from pipeline.parquet import read_groups, read_metadata
from pipeline.sets.files import read_statistics, require_shards, require_sound
from pipeline.sets.record import FILE_NAME, Scores, SetRecord, read_record_of, read_set_record
from pipeline.sets.record_parts import KindName, Shard, TokenizerRecord
from pipeline.sets.row_kind import RowKind
from pipeline.sql.database import view_name
from pipeline.sql.read_only_query import fetch_rows, open_files, select
from pipeline.text.tokenizer import load_tokenizer, pad_id, read_tokenizer_json, tokenizer_sha256, vocabulary_size
from pipeline.text.vocabulary import Vocabulary

Group = tuple[Shard, int]  # a row group of a shard


@dataclass(frozen=True)
class LogitSet:
    """An opened set: its folder, and its record."""

    row_kind: ClassVar[RowKind]
    # Returns what to do if a set of another kind was given.
    advice: ClassVar[str]

    root: Path
    record: SetRecord
    # That of a student which reads the texts. None: the rows are read as the stored ids of the teacher's tokens.
    vocabulary: Vocabulary | None = field(default=None, kw_only=True)

    @classmethod
    def open(cls, path: Path | str, allow_unverified: bool = False) -> Self:
        """Opens a set of this kind for use.

        Raises:
            ConfigError: if it is of another kind.
            IntegrityError: if it is not a set, or its state is not ``verified`` and that is not allowed.
        """
        return cls(Path(path), usable_record(Path(path), allow_unverified, cls.row_kind.name, cls.advice))

    @cached_property
    def tokenizer(self) -> TokenizerRecord:
        """The tokenizer of the ids of rows."""
        return tokenizer_record(self.vocabulary.tokenizer) if self.vocabulary else self.record.tokenizer

    def training_texts(self) -> list[str]:
        """Returns the texts of the training rows, from which a vocabulary can be learned.

        Raises:
            ConfigError: if a set of this kind has no texts.
        """
        raise ConfigError(f"{self.root}: its rows belong to the vocabulary of the teacher. Use --vocabulary teacher.")

    def tokenizer_json(self) -> str:
        """Returns the JSON of the tokenizer of the ids of rows.

        Raises:
            IntegrityError: if the set's file is not its tokenizer.
        """
        if self.vocabulary is not None:
            return self.vocabulary.reader.tokenizer_json()
        load_set_tokenizer(self.root, self.record.tokenizer)
        return read_tokenizer_json(self.root / TOKENIZER_FILE, self.record.tokenizer.sha256)

    def check_split(self, split: str) -> None:
        if split not in self.splits:
            raise ConfigError(f"{self.root}: no split {split!r}. {did_you_mean(split, self.splits)}")

    @property
    def name(self) -> str:
        return self.root.resolve().name

    @property
    def sets(self) -> tuple[Self, ...]:
        """The sets of these rows. The first one provides keys, ids, texts and gold."""
        return (self,)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that can be read."""
        return tuple(self.record.splits)

    @property
    def view(self) -> str:
        """Name of the view of the set, as in the catalog."""
        return view_name(self.name)

    def sql(self, query: str) -> Rows:
        """What a SELECT over the rows of all splits answers; the view has the set's name, and its kind's.

        The macros of ``distill sql`` are available: ``argmax``, ``entropy``, ``margin`` and the others.

        Raises:
            IntegrityError: if a file is missing or was changed.
            QueryError: if it is not a SELECT, or fails.
        """
        files = [file for split in self.splits for file in self.checked_files(split)]
        with open_files({self.row_kind.name: files, self.view: files}, query=query) as connection:
            relation = select(connection, query)
            return Rows(relation.columns, fetch_rows(relation))

    def checked_files(self, split: str) -> list[Path]:
        """The files of a split, after checking their checksums.

        Raises:
            IntegrityError: if a file is missing or was changed.
        """
        shards = self.record.shards_of(split)
        require_shards(self.root, self.record, shards)
        return [self.root / shard.path for shard in shards]

    def scores(self) -> Scores:
        """Measurements of each split that its record stores, from the files of a complete set."""
        raise NotImplementedError


@dataclass(frozen=True)
class GroupedSet(LogitSet):
    """An opened set that is too large to be read at once. Each row group is checked before it is used."""

    def shards(self, split: str) -> list[Shard]:
        self.check_split(split)
        return self.record.shards_of(split)

    def groups(self, split: str) -> list[tuple[Group, int]]:
        """Returns the row groups of a split in order, each with its number of rows. Only footers are read."""
        groups: list[tuple[Group, int]] = []
        for shard in self.shards(split):
            metadata = read_metadata(self.root / shard.path)
            groups += [((shard, k), metadata.row_group(k).num_rows) for k in range(metadata.num_row_groups)]
        return groups

    def totals(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Returns the sums of the shards' footers per split, with the ``bytes`` of the files."""
        for split in self.record.splits:
            paths = [self.root / shard.path for shard in self.shards(split)]
            sums = [read_statistics(path) | {"bytes": path.stat().st_size} for path in paths]
            yield split, {name: sum(part[name] for part in sums) for name in sums[0]}

    def check_shards(self, shards: list[Shard]) -> None:
        """Raises IntegrityError unless files are byte for byte as recorded, and have a set's columns."""
        require_shards(self.root, self.record, shards)

    def read_group(self, group: Group) -> pa.Table:
        """All columns of a row group.

        Raises:
            IntegrityError: if its rows are impossible in a set.
        """
        shard, number = group
        with pq.ParquetFile(self.root / shard.path) as file:
            return self._sound(shard, file.read_row_group(number))

    def read_shard(self, shard: Shard) -> Iterator[pa.Table]:
        """Yields the row groups of a shard after checking the file."""
        self.check_shards([shard])
        for table in read_groups(self.root / shard.path):
            yield self._sound(shard, table)

    def _sound(self, shard: Shard, table: pa.Table) -> pa.Table:
        """Returns the row group after checking it, because the state ``verified`` of a foreign set may be false."""
        require_sound(self.root / shard.path, self.row_kind.problem(self.record, shard, table))
        return table


def usable_record(
    path: Path, allow_unverified: bool = False, rows: KindName | None = None, advice: str = ""
) -> SetRecord:
    """Reads the record of a set, and checks that the set can be used.

    Args:
        path: the set.
        allow_unverified: also accept a set that is complete but not verified.
        rows: the required kind of rows. Default: any.
        advice: what to do if it has other rows.

    Raises:
        ConfigError: if it is of another kind.
        IntegrityError: if it is not a set, or its state is not ``verified`` and that is not allowed.
    """
    record = read_set_record(path) if rows is None else read_record_of(path, rows, advice)
    if record.state == "staged":
        raise IntegrityError(f"{path}: not finished yet. Repeat its command to finish it:\n  {record.command}")
    if record.state != "verified" and not allow_unverified:
        raise IntegrityError(
            f"{path}: state {record.state!r}, not verified. Repeat its command, or use --allow-unverified."
        )
    return record


def is_set(name_or_path: str, store: Path | None = None) -> bool:
    """Whether there is a set with this path, or with this name in the store."""
    return any((path / FILE_NAME).is_file() for path in _places(name_or_path, store or store_folder()))


def _places(name_or_path: str, folder: Path) -> tuple[Path, Path]:
    # A path wins over a name in the store, as users of a shell expect for ./name.
    return Path(name_or_path), folder / name_or_path


def find_set(name_or_path: str, store: Path | None = None) -> Path:
    """Finds a set by its path, or by its name in the store.

    Raises:
        DataError: if there is no such set, listing the sets in the store.
    """
    folder = store or store_folder()
    for path in _places(name_or_path, folder):
        if (path / FILE_NAME).is_file():
            return path
    names = [path.parent.name for path in sorted(folder.glob(f"*/{FILE_NAME}"))]
    raise DataError(
        f"no logit set {name_or_path!r} in the store {folder}. {did_you_mean(name_or_path, names)} "
        "Write one with `distill teacher-dump`, or give its folder, or the store's with --store or DISTILL_STORE"
    )


def tokenizer_record(tokenizer: Tokenizer) -> TokenizerRecord:
    """Describes the tokenizer of ids."""
    return TokenizerRecord(
        sha256=tokenizer_sha256(tokenizer.to_str()),
        vocabulary_size=vocabulary_size(tokenizer),
        pad_id=pad_id(tokenizer),
    )


def load_set_tokenizer(root: Path, record: TokenizerRecord) -> Tokenizer:
    """Reads the tokenizer of the set in ``root``.

    Raises:
        IntegrityError: if the file is not this tokenizer, or if its size differs from the record.
    """
    path = root / TOKENIZER_FILE
    tokenizer = load_tokenizer(path, record.sha256)
    size = vocabulary_size(tokenizer)
    # Ids are only checked against the recorded size. With a wrong size, ids beyond the embedding table would pass.
    if size != record.vocabulary_size:
        raise IntegrityError(f"{path}: a vocabulary of {size:,}, but distill.json has {record.vocabulary_size:,}")
    return tokenizer
