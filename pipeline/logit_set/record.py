"""``distill.json``: everything a logit set says about itself.

Two kinds: examples of a task with logits, and tokens of a corpus with distributions over the vocabulary.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from pipeline.config import parse_model
from pipeline.errors import ConfigError, IntegrityError
from pipeline.files import read_small_file, write_text
from pipeline.logit_set.parts import (
    MAX_COUNT,
    SET_NAME,
    AugmentationRecord,
    Codec,
    CorpusRecord,
    Count,
    MaskingRecord,
    Part,
    PartialSplit,
    Setting,
    Sha256,
    SplitName,
    SplitRecord,
    TaskRecord,
    TeacherRecord,
    Time,
    TokenizerRecord,
    Version,
)
from pipeline.tasks.target import Target
from pipeline.untrusted import parse_json

FILE_NAME = "distill.json"
TOKENIZER_FILE = "tokenizer.json"
MAX_RECORD_BYTES = 64 * 2**20
MAX_SEQ_LENGTH, MAX_VALUES = 2**20, 100_000
State = Literal["staged", "complete", "verified"]
Scores = dict[str, dict[str, float]]  # by split and metric


class Shard(Part):
    """One Parquet file: the source rows ``start`` to ``stop`` (exclusive) of a split.

    ``rows``, ``bytes`` and ``sha256`` are known once the set is complete.
    """

    folder: ClassVar[str] = "examples"

    split: SplitName
    index: Count
    count: int = Field(ge=1, le=MAX_COUNT)
    start: Count
    stop: Count
    rows: Count | None = None
    bytes: Count | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        if self.start > self.stop:
            raise ValueError(f"begins at row {self.start:,} and ends before, at {self.stop:,}")
        return self

    def unmeasured(self) -> Self:
        """The same shard before it is written."""
        return self.model_copy(update={"rows": None, "bytes": None, "sha256": None})

    @property
    def path(self) -> str:
        """Path inside the set, by the hub's naming of split files."""
        return f"{self.folder}/{self.split}-{self.index:05d}-of-{self.count:05d}.parquet"


class SharedShard(Shard):
    """A shard that another version of the set may have written: ``version`` is that version's fingerprint."""

    version: str | None = None


class TokensShard(Shard):
    """One Parquet file of masked sequences: those of its split that begin in the documents ``start`` to ``stop``."""

    folder: ClassVar[str] = "tokens"


class SetRecord(Part):
    """What the records of both kinds of set have in common.

    Attributes:
        settings: everything that decides the rows and what the teacher says; their hash is the fingerprint.
        scores: the teacher's metrics on gold labels, per split.
        notes: what is unusual, such as a partial split.
    """

    holds: ClassVar[str]

    format_version: int
    name: str = Field(pattern=SET_NAME)
    state: State
    created: Time
    command: str
    teacher: TeacherRecord
    tokenizer: TokenizerRecord
    max_seq_length: int = Field(ge=1, le=MAX_SEQ_LENGTH)
    precision: str
    source: str
    splits: Mapping[SplitName, SplitRecord] = Field(min_length=1)
    settings: dict[str, Setting]
    fingerprint: str
    shards: tuple[Shard, ...] = Field(min_length=1, fail_fast=True)
    scores: dict[SplitName, dict[SplitName, float]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "SetRecord":
        if self.fingerprint != fingerprint(self.settings):
            raise ValueError("the fingerprint does not belong to the settings")
        if len({shard.path for shard in self.shards}) != len(self.shards):
            raise ValueError("a shard is listed twice")
        return self

    def shards_of(self, split: str) -> list[Shard]:
        """The shards of a split, in row order."""
        return [shard for shard in self.shards if shard.split == split]

    def rows_of(self, split: str) -> int:
        """Rows of a split; before they are counted, as many as its source has."""
        return sum(
            shard.rows if shard.rows is not None else shard.stop - shard.start for shard in self.shards_of(split)
        )

    @property
    @abstractmethod
    def licence(self) -> str:
        """Licence of the texts."""

    @property
    def num_rows(self) -> int:
        """Rows in all splits."""
        return sum(self.rows_of(split) for split in {shard.split for shard in self.shards})

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards that are finished."""
        return sum(shard.bytes or 0 for shard in self.shards)


class ExamplesRecord(SetRecord):
    """The record of a task's logits."""

    holds: ClassVar[str] = "logits of a task"

    format_version: int = 1
    task: TaskRecord
    target: Target

    @property
    def licence(self) -> str:
        """Licence of the texts."""
        return self.task.licence


class TokensRecord(SetRecord):
    """The record of a corpus's masked positions.

    Attributes:
        codec: how distributions are stored.
        decoder_sha256: hash of the file ``decoder.safetensors``, for the codec that needs one.
    """

    holds: ClassVar[str] = "predictions of a masked language model"

    format_version: int = 2
    corpus: CorpusRecord
    masking: MaskingRecord
    codec: Codec
    decoder_sha256: Sha256 | None = None
    shards: tuple[TokensShard, ...] = Field(min_length=1, fail_fast=True)

    @property
    def licence(self) -> str:
        """Licence of the texts."""
        return self.corpus.licence


class AugmentedRecord(ExamplesRecord):
    """The record of a task's logits with those of variants of its training rows."""

    holds: ClassVar[str] = "logits of a task with variants"

    format_version: int = 3
    augmentation: AugmentationRecord


class DerivedRecord(ExamplesRecord):
    """The record of a set made from another: without its texts, joined with one's own, or extended by new rows.

    Attributes:
        has_text: whether the rows hold texts and their token ids.
        versions_before: the earlier versions that wrote some of its shards: of other rows, but of the same settings.
        augmentation: as in the set it was made from.
    """

    holds: ClassVar[str] = "logits of a task"

    format_version: int = 4
    has_text: bool = True
    versions_before: tuple[Version, ...] = ()
    augmentation: AugmentationRecord | None = None
    splits: Mapping[SplitName, PartialSplit] = Field(min_length=1)
    shards: tuple[SharedShard, ...] = Field(min_length=1, fail_fast=True)

    @model_validator(mode="after")
    def _same_teacher(self) -> "DerivedRecord":
        known = {fingerprint(version.settings) for version in self.versions_before}
        if not {shard.version for shard in self.shards if shard.version is not None} <= known:
            raise ValueError("a shard is of a version that is not among those before")
        for version in self.versions_before:
            if lasting(version.settings) != lasting(self.settings):
                raise ValueError("a version before was made with other settings than this one")
        return self


KINDS: dict[int, type[SetRecord]] = {
    1: ExamplesRecord,
    2: TokensRecord,
    3: AugmentedRecord,
    4: DerivedRecord,
}
M = TypeVar("M", bound=SetRecord)


def augmentation_of(record: SetRecord) -> AugmentationRecord | None:
    """What a set says of its variants; None if it has none."""
    return record.augmentation if isinstance(record, AugmentedRecord | DerivedRecord) else None


def has_text(record: SetRecord) -> bool:
    """Whether the rows of a set hold what the teacher was asked, or only a hash of it."""
    return not isinstance(record, DerivedRecord) or record.has_text


def lasting(settings: dict[str, Setting]) -> dict[str, Setting]:
    """The settings apart from those that name rows: the same for all versions of a set."""
    return {key: value for key, value in settings.items() if not key.startswith("source.")}


def fingerprint(settings: dict[str, Setting]) -> str:
    """SHA-256 of the settings, independent of their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def read_set_record(root: Path) -> SetRecord:
    """Reads the ``distill.json`` of a set.

    Raises:
        IntegrityError: if there is none, or it is damaged, too large, or of a newer format.
    """
    path = root / FILE_NAME
    try:
        text = read_small_file(path, MAX_RECORD_BYTES)
    except FileNotFoundError as error:
        raise IntegrityError(f"{root}: not a logit set: it has no {FILE_NAME}") from error
    return parse_set_record(text, str(path))


def parse_set_record(text: bytes, path: str) -> SetRecord:
    """Reads the content of a ``distill.json``; ``path`` is for the message.

    Raises:
        IntegrityError: if it is damaged, or of a newer format.
    """
    try:
        values: Any = parse_json(text)
    except ValueError as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error
    version = values.get("format_version") if isinstance(values, dict) else None
    if type(version) is not int or version not in KINDS:
        raise IntegrityError(
            f"{path}: format version {version!r}, but this release reads {', '.join(map(str, KINDS))}; "
            "install the release of distill that wrote it"
        )
    if _num_values([value for key, value in values.items() if key != "shards"]) > MAX_VALUES:
        raise IntegrityError(f"{path}: more than {MAX_VALUES:,} values beside the shards, so not the record of a set")
    try:
        return parse_model(KINDS[version], values, path)
    except ConfigError as error:
        raise IntegrityError(str(error)) from error


def _num_values(value: Any) -> int:
    """Values at any depth: a wrong one costs hundreds of times its own bytes, as each gets a message."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_num_values, parts))


def read_kind(root: Path, kind: type[M], advice: str) -> M:
    """Reads the ``distill.json`` of a set that must be of one kind.

    Args:
        root: the set.
        kind: what it must be.
        advice: what to do if it is of the other kind.

    Raises:
        ConfigError: if it is of the other kind.
        IntegrityError: as `read_manifest`.
    """
    record = read_set_record(root)
    if not isinstance(record, kind):
        raise ConfigError(f"{root}: holds {record.holds}; {advice}")
    return record


def write_set_record(root: Path, record: SetRecord) -> None:
    """Writes ``distill.json`` atomically."""
    write_text(root / FILE_NAME, to_json(record))


def to_json(record: SetRecord) -> str:
    """The text of a ``distill.json``."""
    return record.model_dump_json(indent=2) + "\n"
