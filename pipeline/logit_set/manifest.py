"""``distill.json``: everything a logit set says about itself."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.config import parse_model
from pipeline.errors import ConfigError, IntegrityError
from pipeline.files import write_text
from pipeline.targets import Target
from pipeline.tasks import SPLIT_PATTERN, Metric

FORMAT_VERSION = 1
FILE_NAME = "distill.json"
TOKENIZER_FILE = "tokenizer.json"
MAX_MANIFEST_BYTES = 64 * 2**20

State = Literal["staged", "complete", "verified"]
Setting = str | int | float | bool


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Shard(_Record):
    """One Parquet file: the source rows ``start`` to ``stop`` (exclusive) of a split.

    ``rows``, ``bytes`` and ``sha256`` are known once the set is complete.
    """

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
        return f"examples/{self.split}-{self.index:05d}-of-{self.count:05d}.parquet"


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


class SetManifest(_Record):
    """The record of a logit set.

    Attributes:
        settings: everything that decides the rows and the logits; their hash is the fingerprint.
        scores: the teacher's metrics on gold labels, per split.
        notes: what is unusual, such as a partial split.
    """

    format_version: int = FORMAT_VERSION
    name: str
    state: State
    created: str
    command: str
    task: TaskRecord
    target: Target
    teacher: TeacherRecord
    tokenizer: TokenizerRecord
    max_seq_length: int
    precision: str
    source: str
    splits: dict[str, SplitRecord]
    settings: dict[str, Setting]
    fingerprint: str
    shards: tuple[Shard, ...]
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)
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

    @property
    def num_rows(self) -> int:
        """Rows in all splits."""
        return sum(shard.rows if shard.rows is not None else shard.stop - shard.start for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards that are finished."""
        return sum(shard.bytes or 0 for shard in self.shards)


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
    if version != FORMAT_VERSION:
        raise IntegrityError(
            f"{path}: format version {version!r}, but this release reads version {FORMAT_VERSION}; "
            "install the release of distill that wrote it"
        )
    try:
        return parse_model(SetManifest, values, str(path))
    except ConfigError as error:
        raise IntegrityError(str(error)) from error


def write_manifest(root: Path, manifest: SetManifest) -> None:
    """Writes ``distill.json`` atomically."""
    write_text(root / FILE_NAME, to_json(manifest))


def to_json(manifest: SetManifest) -> str:
    """The text of a ``distill.json``."""
    return manifest.model_dump_json(indent=2) + "\n"
