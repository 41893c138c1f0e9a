"""``distill.json``: everything a logit set says about itself.

Two kinds: examples of a task with logits, and tokens of a corpus with distributions over the vocabulary.
"""

import hashlib
import json
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.config import parse_model
from pipeline.errors import ConfigError, IntegrityError
from pipeline.files import write_text
from pipeline.logit_set.augmentation import AugmentationRecord
from pipeline.logit_set.codec import Codec
from pipeline.targets import Target
from pipeline.tasks import SPLIT_PATTERN, Metric

FILE_NAME = "distill.json"
TOKENIZER_FILE = "tokenizer.json"
MAX_MANIFEST_BYTES = 64 * 2**20

State = Literal["staged", "complete", "verified"]
Setting = str | int | float | bool
Scores = dict[str, dict[str, float]]  # by split and metric


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Shard(_Record):
    """One Parquet file: the source rows ``start`` to ``stop`` (exclusive) of a split.

    ``rows``, ``bytes`` and ``sha256`` are known once the set is complete.
    """

    folder: ClassVar[str] = "examples"

    split: str = Field(pattern=SPLIT_PATTERN)
    index: int = Field(ge=0)
    count: int = Field(ge=1)
    start: int = Field(ge=0)
    stop: int = Field(ge=0)
    rows: int | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def path(self) -> str:
        """Path inside the set, by the hub's naming of split files."""
        return f"{self.folder}/{self.split}-{self.index:05d}-of-{self.count:05d}.parquet"


class TokensShard(Shard):
    """One Parquet file of masked sequences: those of its split that begin in the documents ``start`` to ``stop``."""

    folder: ClassVar[str] = "tokens"


class SplitRecord(_Record):
    """The source rows of a split; ``expected_rows`` is what the task's manifest says of the whole split."""

    rows: int
    expected_rows: int | None
    rows_sha256: str


class TaskRecord(_Record):
    """What a reader needs to know of the task."""

    name: str
    version: int
    is_pair: bool
    metrics: tuple[Metric, ...]
    licence: str


class TeacherRecord(_Record):
    """Who spoke; ``labels`` is the order of the teacher's own outputs before they were put in the task's order."""

    name: str
    revision: str | None
    weights_sha256: str
    num_parameters: int
    labels: tuple[str, ...]


class TokenizerRecord(_Record):
    """The tokenizer that the ids belong to."""

    sha256: str
    vocabulary_size: int
    pad_id: int


class CorpusRecord(_Record):
    """What a reader needs to know of the corpus, and how it was cut into sequences."""

    name: str
    version: int
    language: str
    licence: str
    packing: str
    min_seq_length: int
    validation_every: int


class MaskingRecord(_Record):
    """How sequences were masked: with these, the sequence and the copy, the same positions come out again."""

    kind: str
    probability: float
    num_copies: int
    seed: int
    mask_id: int


class SetManifest(_Record):
    """What the records of both kinds of set have in common.

    Attributes:
        settings: everything that decides the rows and what the teacher says; their hash is the fingerprint.
        scores: the teacher's metrics on gold labels, per split.
        notes: what is unusual, such as a partial split.
    """

    holds: ClassVar[str]

    format_version: int
    name: str
    state: State
    created: str
    command: str
    teacher: TeacherRecord
    tokenizer: TokenizerRecord
    max_seq_length: int
    precision: str
    source: str
    splits: dict[str, SplitRecord]
    settings: dict[str, Setting]
    fingerprint: str
    shards: tuple[Shard, ...]
    scores: Scores = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> "SetManifest":
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


class ExamplesManifest(SetManifest):
    """The record of a task's logits."""

    holds: ClassVar[str] = "logits of a task"

    format_version: int = 1
    task: TaskRecord
    target: Target

    @property
    def licence(self) -> str:
        """Licence of the texts."""
        return self.task.licence


class TokensManifest(SetManifest):
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
    decoder_sha256: str | None = None
    shards: tuple[TokensShard, ...]

    @property
    def licence(self) -> str:
        """Licence of the texts."""
        return self.corpus.licence


class AugmentedManifest(ExamplesManifest):
    """The record of a task's logits with those of variants of its training rows."""

    holds: ClassVar[str] = "logits of a task with variants"

    format_version: int = 3
    augmentation: AugmentationRecord


KINDS: dict[int, type[SetManifest]] = {1: ExamplesManifest, 2: TokensManifest, 3: AugmentedManifest}
M = TypeVar("M", bound=SetManifest)


def fingerprint(settings: dict[str, Setting]) -> str:
    """SHA-256 of the settings, independent of their order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def read_manifest(root: Path) -> SetManifest:
    """Reads the ``distill.json`` of a set.

    Raises:
        IntegrityError: if there is none, or it is damaged, too large, or of a newer format.
    """
    path = root / FILE_NAME
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise IntegrityError(f"{path}: larger than {MAX_MANIFEST_BYTES:,} bytes, not a distill.json")
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise IntegrityError(f"{root}: not a logit set: it has no {FILE_NAME}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error
    version = values.get("format_version") if isinstance(values, dict) else None
    if type(version) is not int or version not in KINDS:
        raise IntegrityError(
            f"{path}: format version {version!r}, but this release reads {', '.join(map(str, KINDS))}; "
            "install the release of distill that wrote it"
        )
    try:
        return parse_model(KINDS[version], values, str(path))
    except ConfigError as error:
        raise IntegrityError(str(error)) from error


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
    manifest = read_manifest(root)
    if not isinstance(manifest, kind):
        raise ConfigError(f"{root}: holds {manifest.holds}; {advice}")
    return manifest


def write_manifest(root: Path, manifest: SetManifest) -> None:
    """Writes ``distill.json`` atomically."""
    write_text(root / FILE_NAME, to_json(manifest))


def to_json(manifest: SetManifest) -> str:
    """The text of a ``distill.json``."""
    return manifest.model_dump_json(indent=2) + "\n"
