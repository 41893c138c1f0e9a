"""The record of a set, stored as ``distill.json``.

A set consists of rows and a teacher's outputs for them. Rows are examples of a task, masked sequences, sentences, or
labelled words.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import pyarrow as pa
from pydantic import ConfigDict, Field, field_validator, model_validator

from pipeline.errors import ConfigError, IntegrityError, did_you_mean
from pipeline.file_names import SET_RECORD
from pipeline.files import read_small_file, write_text
from pipeline.parsing import parse_model
from pipeline.record_file import CHECKSUM, MAX_RECORD_BYTES, with_checksum, without_checksum
from pipeline.sets.codecs import AnyCodec
from pipeline.sets.record_parts import (
    MAX_SEQ_LENGTH,
    SET_NAME,
    SHA256_PATTERN,
    AugmentationRecord,
    CorpusRecord,
    KindName,
    MaskingRecord,
    Part,
    Setting,
    Shard,
    SplitName,
    SplitRecord,
    TaskRecord,
    TeacherRecord,
    Time,
    TokenizerRecord,
    UnlabelledRecord,
    Version,
    WindowsRecord,
    fingerprint,
    shared_settings,
)
from pipeline.sets.registry import FORMATS, TEXT_COLUMNS, RowFormat
from pipeline.sets.signals import Signals
from pipeline.sources.gold import GOLD_TYPE, LABEL_LISTS
from pipeline.tasks.target import Target
from pipeline.tasks.task import TRAIN, Metric
from pipeline.untrusted import num_values, parse_json

FILE_NAME = SET_RECORD
FORMAT_VERSION: Final = 1
MAX_VALUES, MAX_SHARDS = 100_000, 2**16
State = Literal["staged", "complete", "verified"]
Scores = dict[str, dict[str, float]]  # by split and metric
P = TypeVar("P")


def _with_checksum(schema: dict[str, Any]) -> None:
    """The checksum is a key of the file but not of the record."""
    schema["properties"][CHECKSUM] = {"pattern": SHA256_PATTERN, "type": "string"}


class SetRecord(Part):
    """The record of a set.

    Attributes:
        kind: the kind of its rows.
        signals: the teacher's outputs for them, and their codecs.
        task: what readers need of the task, for examples and for sentences of a task.
        corpus: the corpus of masked words, and of sentences from a corpus.
        masking: how the corpus was masked.
        windows: how the teacher read long rows, if they were not truncated.
        source: the source of the rows.
        settings: everything that determines the rows and the teacher's outputs. Their hash is the fingerprint.
        scores: the teacher's metrics on gold labels, per split.
        notes: unusual facts, such as a partial split.
        versions: the versions of the libraries that wrote it.
        augmentation: the variants of rows, if there are any.
        unlabelled: the rows without gold that were added to the task's rows, if there are any.
        has_text: whether the rows contain their text, or only its hash.
        versions_before: the earlier versions that wrote some of its shards, with other rows but the same settings.
    """

    model_config = ConfigDict(json_schema_extra=_with_checksum)
    format_version: Literal[1] = FORMAT_VERSION
    name: str = Field(pattern=SET_NAME)
    state: State
    created: Time
    command: str
    kind: KindName
    signals: Signals
    task: TaskRecord | None = None
    corpus: CorpusRecord | None = None
    masking: MaskingRecord | None = None
    teacher: TeacherRecord
    tokenizer: TokenizerRecord
    max_seq_length: int = Field(ge=1, le=MAX_SEQ_LENGTH)
    windows: WindowsRecord | None = None
    precision: str
    source: str
    splits: Mapping[SplitName, SplitRecord] = Field(min_length=1)
    settings: dict[str, Setting]
    fingerprint: str
    shards: tuple[Shard, ...] = Field(min_length=1, max_length=MAX_SHARDS, fail_fast=True)
    scores: dict[SplitName, dict[SplitName, float]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    augmentation: AugmentationRecord | None = None
    unlabelled: UnlabelledRecord | None = None
    has_text: bool = True
    versions_before: tuple[Version, ...] = ()

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        if kind not in FORMATS:
            raise ValueError(f"not a kind of rows. {did_you_mean(kind, FORMATS)}")
        return kind

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Without this check a foreign record could claim the settings of one set and the files of another.
        if self.fingerprint != fingerprint(self.settings):
            raise ValueError("the fingerprint does not belong to the settings")
        # A shard that is listed twice would pass every check of its file and count its rows double.
        if len({shard.path for shard in self.shards}) != len(self.shards):
            raise ValueError("a shard is listed twice")
        if any(shard.folder != self.kind for shard in self.shards):
            raise ValueError(f"a shard is not in the folder {self.kind!r} of its rows")
        return self

    @model_validator(mode="after")
    def _signals_fit(self) -> Self:
        # Every reader and check starts from the files of rows, so a set of layers alone would be unreadable.
        if not any(signal.is_in_rows for signal in self.signals.stored):
            raise ValueError("signals: the rows have no signal, but a set stores the teacher's outputs for them")
        for name, signal in self.signals:
            if signal is not None and name not in self.row_format.signals:
                kinds = " or ".join(kind for kind, rows in FORMATS.items() if name in rows.signals)
                raise ValueError(f"signals: {signal.title} are for sets of {kinds}, but this set is of {self.kind}")
        for signal in self.signals.layer_signals:
            # Hidden states can be inverted to the text, so a text-free set with layers would defeat its purpose.
            if not self.has_text:
                raise ValueError(f"signals: {signal.title} contain the text, but this set has no text")
            if self.windows is not None:
                raise ValueError(f"signals: {signal.title} are not supported for rows that were read by windows")
            if [shard.range for shard in signal.shards] != [shard.range for shard in self.shards]:
                raise ValueError(f"signals: {signal.title} have other files than the rows")
        tokens, size = self.signals.token_vectors, self.tokenizer.vocabulary_size
        if tokens and tokens.file.rows != size:
            raise ValueError(f"token_vectors: of {tokens.file.rows:,} tokens, but the tokenizer has {size:,}")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        rows = self.row_format
        if rows.needs_one and sum(getattr(self, part) is not None for part in rows.needs_one) != 1:
            raise ValueError(f"{' and '.join(sorted(rows.needs_one))}: a set of {self.kind} has exactly one of them")
        for part in sorted({part for other in FORMATS.values() for part in other.parts}):
            if getattr(self, part) is None and part in rows.needs:
                raise ValueError(f"missing key {part!r}, which a set of {self.kind} has")
            if getattr(self, part) is not None and part not in rows.parts:
                raise ValueError(f"{part}: a set of {self.kind} must not have this part")
        if not (self.has_text or rows.may_lack_text):
            raise ValueError(f"has_text: {self.kind} require their text")
        return self

    @model_validator(mode="after")
    def _unlabelled_rows_are_last(self) -> Self:
        if self.unlabelled is not None:
            train = self.splits.get(TRAIN)
            if train is None or self.unlabelled.first_row + self.unlabelled.rows != train.rows:
                raise ValueError(f"unlabelled: these rows are not the last ones of the split {TRAIN!r}")
        return self

    @model_validator(mode="after")
    def _same_teacher(self) -> Self:
        before = {fingerprint(earlier.settings) for earlier in self.versions_before}
        if not {shard.version for shard in self.shards if shard.version is not None} <= before:
            raise ValueError("a shard belongs to a version that is not in the list")
        for earlier in self.versions_before:
            if shared_settings(earlier.settings) != shared_settings(self.settings):
                raise ValueError("an earlier version was made with other settings")
        return self

    @property
    def row_format(self) -> RowFormat:
        return FORMATS[self.kind]

    def arrow_schema(self) -> pa.Schema:
        """The columns of the set's files: those of its rows, then those of its signals."""
        # A masked LM may have more outputs than its tokenizer has tokens.
        size = self.codec.vocabulary_size if self.signals.mlm else self.tokenizer.vocabulary_size
        gold_type = LABEL_LISTS if self.signals.logits and self.target.has_label_lists else GOLD_TYPE
        columns = self.row_format.columns(size, gold_type)
        # Without text there are no ids either: a tokenizer turns them back into it.
        rows = [column for column in columns if self.has_text or column.name not in TEXT_COLUMNS]
        return pa.schema([*rows, *(column for signal in self.signals.stored for column in signal.columns())])

    def shards_of(self, split: str) -> list[Shard]:
        """The shards of a split, in row order."""
        return [shard for shard in self.shards if shard.split == split]

    def rows_of(self, split: str) -> int:
        """Returns the number of rows of a split. Before they are counted, it is that of the source."""
        return sum(s.stop - s.start if s.rows is None else s.rows for s in self.shards_of(split))

    @property
    def num_rows(self) -> int:
        return sum(self.rows_of(split) for split in {shard.split for shard in self.shards})

    @property
    def num_bytes(self) -> int:
        """Bytes of all finished files: the shards of rows, and other files of signals."""
        return sum(shard.bytes or 0 for shard in self.shards) + self.signals.num_bytes

    @property
    def contents(self) -> str:
        """The signals and the rows, in a few words."""
        titles = " and ".join(signal.title for signal in self.signals.stored)
        added = {"variants": self.augmentation, "unlabelled rows": self.unlabelled}
        names = " and ".join(name for name, part in added.items() if part)
        return titles + (f" with {names}" if names else "")

    @property
    def dataset_name(self) -> str:
        return (self.task or _of_its_kind(self.corpus)).name

    @property
    def licence(self) -> str:
        return (self.task or _of_its_kind(self.corpus)).licence

    @property
    def is_pair(self) -> bool:
        return self.task is not None and self.task.is_pair

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The task's metrics. Empty for a corpus."""
        return self.task.metrics if self.task else ()

    @property
    def mask_seed(self) -> int:
        """Seed of masking and draws, of a set of tokens."""
        return _of_its_kind(self.masking).seed

    @property
    def target(self) -> Target:
        """What the logits mean, for a set with logits."""
        texts, words = self.signals.logits, self.signals.token_logits
        return texts.target if texts else _of_its_kind(words).target

    @property
    def codec(self) -> AnyCodec:
        """The codec of distributions, for a set of masked positions."""
        return _of_its_kind(self.signals.mlm).codec


def _of_its_kind(part: P | None) -> P:
    """Returns a part that every set of this kind has."""
    assert part is not None, "the part belongs to sets of another kind"
    return part


def staged(
    settings: dict[str, Setting],
    command: str,
    libraries: Sequence[str] = (),
    base: SetRecord | None = None,
    **parts: Any,
) -> SetRecord:
    """Returns the record of a set before its first shard: the common parts, and the given ones.

    Args:
        settings: everything that determines its content.
        command: the command line.
        libraries: packages whose versions are recorded. With a ``base``, its versions are copied instead.
        base: a set that it is made from. It provides all parts that are not given: its shards without measurements, and
            its signals of rows.
        parts: fields of `SetRecord`.
    """
    base_parts: dict[str, Any] = {"versions": {name: version(name) for name in libraries}}
    if base is not None:
        shards = tuple(shard.unmeasured() for shard in base.shards)
        base_parts = dict(base) | {"shards": shards, "scores": {}, "signals": base.signals.row_signals()}
    common = {
        "state": "staged",
        # The time is not a setting, so that two dumps with equal settings have equal fingerprints.
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "settings": settings,
        "fingerprint": fingerprint(settings),
    }
    return SetRecord(**base_parts | common | parts)


def changed(record: SetRecord, **parts: Any) -> SetRecord:
    """Returns the record with other parts, after checking it again."""
    return SetRecord(**dict(record) | parts)


def read_set_record(root: Path) -> SetRecord:
    """Reads the ``distill.json`` of a set.

    Raises:
        IntegrityError: if it does not exist, is damaged or too large, or has another format.
    """
    path = root / FILE_NAME
    try:
        text = read_small_file(path, MAX_RECORD_BYTES)
    except FileNotFoundError as error:
        raise IntegrityError(f"{root}: not a logit set: it has no {FILE_NAME}") from error
    return parse_set_record(text, str(path))


def parse_set_record(text: bytes, path: str) -> SetRecord:
    """Reads the content of a ``distill.json``. ``path`` is for the message.

    Raises:
        IntegrityError: if it is damaged, or of another format.
    """
    try:
        values: Any = parse_json(text)
        number = values.get("format_version") if isinstance(values, dict) else None
        # The version is checked before anything else: a newer format should not be reported as a damaged file.
        if type(number) is not int or number != FORMAT_VERSION:
            raise IntegrityError(
                f"{path}: format version {number!r}, but this release reads {FORMAT_VERSION}. "
                "Install the release of distill that wrote it."
            )
        values = without_checksum(values)
    except ValueError as error:
        raise IntegrityError(f"{path}: cannot be read: {error}") from error
    # Counted before pydantic sees the values, because a hostile record could make it build millions of messages.
    if num_values(values, besides="shards") > MAX_VALUES:
        raise IntegrityError(
            f"{path}: more than {MAX_VALUES:,} values besides the shards, so it is not the record of a set"
        )
    try:
        return parse_model(SetRecord, values, path)
    except ConfigError as error:
        raise IntegrityError(str(error)) from error


def read_record_of(root: Path, kind: KindName, advice: str) -> SetRecord:
    """Reads the ``distill.json`` of a set with the required kind of rows.

    The error for other sets ends with ``advice``.

    Raises:
        ConfigError: if it is of another kind.
        IntegrityError: see `read_set_record`.
    """
    record = read_set_record(root)
    if record.kind != kind:
        raise ConfigError(f"{root}: holds {record.contents}. {advice[:1].upper()}{advice[1:]}.")
    return record


def write_set_record(root: Path, record: SetRecord) -> None:
    """Writes ``distill.json`` atomically."""
    write_text(root / FILE_NAME, to_json(record))


def to_json(record: SetRecord) -> str:
    """Returns the text of a ``distill.json``, with its checksum. None is left out."""
    return with_checksum(record.model_dump_json(indent=2, exclude_none=True))
