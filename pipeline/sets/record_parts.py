"""The parts of a ``distill.json``. The file may be hostile, so numbers have bounds, and names have patterns."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pipeline.errors import short
from pipeline.record_file import json_sha256
from pipeline.tasks.task import SPLIT_PATTERN, TRAIN, MethodName, Metric, Names

# Far above any real set, and low enough that sums and products of a few counts stay within int64.
MAX_COUNT = 2**40  # rows, bytes, parameters
MAX_VOCABULARY = 2**22
MAX_SEQ_LENGTH = 2**20
UNLABELLED = "unlabelled"  # origin of such rows
# No slash and no leading dot: a name from elsewhere becomes a folder and must not leave the store.
SET_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
KIND_PATTERN = r"^[a-z][a-z_]{0,29}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
TIME_PATTERN = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d$"
Setting = str | int | float | bool
LayersName = Literal["states", "cls", "attention", "values"]
LayerRows = Literal["originals", "all"]
Range = tuple[str, int, int, int, int, str | None]  # of a file: its rows, and the version that wrote it


def _real_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what a seed may be
KindName = Annotated[str, Field(pattern=KIND_PATTERN)]  # of rows, see `pipeline.sets.kinds`
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
SplitName = Annotated[str, Field(pattern=SPLIT_PATTERN)]
Time = Annotated[str, Field(pattern=TIME_PATTERN), AfterValidator(_real_time)]


class Part(BaseModel):
    """Base class for parts of a set's record: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class SplitRecord(Part):
    """The source rows of a split.

    Attributes:
        rows: how many there are.
        expected_rows: the number in the task's manifest.
        rows_sha256: hash of their texts and gold.
        absent: how many of them the set does not have.
    """

    rows: Count
    expected_rows: Count | None = None
    rows_sha256: Sha256
    absent: Count = 0


class Shard(Part):
    """One Parquet file: the source rows ``start`` to ``stop`` (exclusive) of a split.

    Attributes:
        folder: of the file: the kind of its rows, or of a teacher's layers the signal.
        split: the rows' split.
        index: number of the file in the split, from 0.
        count: how many files the split has.
        start: the first source row; of a corpus the first document that a sequence may begin in.
        stop: one past the last.
        rows: rows of the file; this, ``bytes`` and ``sha256`` are known once the set is complete.
        bytes: size of the file.
        sha256: hash of the file.
        version: fingerprint of the earlier version of the set that wrote it, if this one did not.
    """

    folder: KindName | LayersName
    split: SplitName
    index: Count
    count: int = Field(ge=1, le=MAX_COUNT)
    start: Count
    stop: Count
    rows: Count | None = None
    bytes: Count | None = None
    sha256: Sha256 | None = None
    version: str | None = None

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        if self.start > self.stop:
            raise ValueError(f"begins at row {self.start:,} and ends before, at {self.stop:,}")
        return self

    def unmeasured(self) -> Self:
        """The same shard before it is written."""
        return self.model_copy(update={"rows": None, "bytes": None, "sha256": None})

    def in_folder(self, folder: KindName | LayersName) -> Self:
        """The file in another folder of the set that stands for the same rows, before it is written."""
        return self.unmeasured().model_copy(update={"folder": folder})

    @property
    def range(self) -> Range:
        """The rows that it stands for, and the version that wrote them."""
        return self.split, self.index, self.count, self.start, self.stop, self.version

    @property
    def path(self) -> str:
        """Path inside the set, by the hub's naming of split files."""
        # `datasets` finds the splits of a folder by names of this form.
        return f"{self.folder}/{self.split}-{self.index:05d}-of-{self.count:05d}.parquet"


class FileRecord(Part):
    """A Parquet file of a set that is no shard."""

    rows: Count
    bytes: Count
    sha256: Sha256


class Version(Part):
    """An earlier version of a set, of which it still has shards."""

    format_version: int
    settings: dict[str, Setting]


class TaskRecord(Part):
    """What a reader needs to know of the task.

    Attributes:
        text_columns: names that the column of the (first) sentences may have in its files, and that of the second ones;
            None in sets of before this was noted.
        label_columns: names that the column of the gold may have in its files; None also if each label has a column.
    """

    name: str
    version: Count
    is_pair: bool
    metrics: tuple[Metric, ...] = Field(min_length=1)
    licence: str
    text_columns: tuple[Names, ...] | None = Field(None, min_length=1, max_length=2)
    label_columns: Names | None = None


class TeacherRecord(Part):
    """Who spoke: a model whose weights are known, or anybody whose answers were imported from a file.

    Attributes:
        name: of the model, or what the importer calls whoever answered.
        revision: of the model on the hub.
        weights_sha256: hash of its weights.
        answers_sha256: hash of the file of answers, which stands in for that of weights that nobody here has seen.
        num_parameters: of the model.
        labels: the order of the teacher's own outputs before they were put in the task's order.
    """

    name: str
    revision: str | None = None
    weights_sha256: Sha256 | None = None
    answers_sha256: Sha256 | None = None
    num_parameters: Count | None = None
    labels: tuple[str, ...]

    @model_validator(mode="after")
    def _one_hash(self) -> Self:
        # Fingerprints identify a teacher by this hash, so exactly one has to be known.
        if (self.weights_sha256 is None) == (self.answers_sha256 is None):
            raise ValueError("weights_sha256, answers_sha256: a teacher has one of them")
        if (self.weights_sha256 is None) != (self.num_parameters is None):
            raise ValueError("num_parameters: known of a teacher whose weights are known, and of no other")
        return self

    @property
    def sha256(self) -> str:
        """Hash of the weights, or of the file that stands in for them."""
        return self.weights_sha256 or self.answers_sha256 or ""

    @property
    def is_imported(self) -> bool:
        """Whether nothing but its answers is known of it."""
        return self.answers_sha256 is not None


class TokenizerRecord(Part):
    """The tokenizer that the ids belong to; where it has no padding token, ``pad_id`` is one past the vocabulary."""

    sha256: Sha256
    vocabulary_size: int = Field(ge=1, le=MAX_VOCABULARY)
    pad_id: Count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # One past the vocabulary is allowed: a tokenizer without a padding token gets an extra row in the student's
        # table.
        if self.pad_id > self.vocabulary_size:
            raise ValueError(f"pad_id {self.pad_id} is beyond the vocabulary of {self.vocabulary_size}")
        return self


class CorpusRecord(Part):
    """What a reader needs to know of the corpus, and how it was cut into sequences."""

    name: str
    version: Count
    language: str
    licence: str
    packing: str
    min_seq_length: Count
    validation_every: Count


class MaskingRecord(Part):
    """How sequences were masked: with these, the sequence and the copy, the same positions come out again."""

    kind: str
    probability: float = Field(ge=0, le=1)
    num_copies: Count
    seed: Whole
    mask_id: Count


class Sample(Part):
    """An augmented row, and the one it was made from."""

    source_row: Count
    variant: Count
    origin: str
    original: tuple[str, ...]
    text: tuple[str, ...]


class UnlabelledRecord(Part):
    """The rows without gold that were added to the split ``train``, after the task's own, and what was left out.

    Attributes:
        source: where their text was read.
        settings: all that decides them, besides the task's rows.
        first_row: source row of the first of them.
        found: rows, or pairs, that the text gave.
        empty: left out, as a sentence has no word.
        near_dev: left out, as near copies of rows of other splits than ``train``.
        repeated: left out, as a row of ``train`` or an earlier one reads the same.
        rows: those that were added; what is missing to ``found`` was not drawn.
        cut: of these, how many are longer than the teacher reads.
    """

    source: str
    settings: dict[str, Setting]
    first_row: Count
    found: Count
    empty: Count
    near_dev: Count
    repeated: Count
    rows: Count
    cut: Count = 0

    @model_validator(mode="after")
    def _add_up(self) -> Self:
        if self.undrawn < 0 or self.cut > self.rows:
            raise ValueError("its numbers of rows do not add up")
        return self

    @property
    def undrawn(self) -> int:
        """Rows that were left out since fewer were wanted."""
        return self.found - self.empty - self.near_dev - self.repeated - self.rows

    def lines(self) -> dict[str, int | str]:
        """What was found, left out and added, by what the card and the terminal call it."""
        return {
            "source": self.source,
            "pairs from": str(self.settings.get("pairs", "none")),
            "rows found": self.found,
            "left out, a sentence has no word": self.empty,
            "left out, near copies of dev rows": self.near_dev,
            "left out, as another row reads the same": self.repeated,
            "left out, not drawn": self.undrawn,
            "rows added": self.rows,
            "of these cut, as the teacher reads no more": self.cut,
        }


class AugmentationRecord(Part):
    """How the rows of a split were augmented, and what came of it.

    Attributes:
        method: its name.
        settings: all that decides the rows.
        source_rows: the task's own rows of the split.
        tried: requested variants in total.
        generated: those that the method did not give up.
        unchanged: dropped, as an original reads the same.
        repeated: dropped, as an earlier variant reads the same.
        rows: variants that are left.
        changed_words: words of theirs that are not the original's.
        words: words of the sentences that they change.
        rows_sha256: hash of their keys and texts.
        sample: a few variants, for people to look at.
    """

    method: MethodName
    settings: dict[str, Setting]
    source_rows: int = Field(ge=1, le=MAX_COUNT)
    tried: Count
    generated: Count
    unchanged: Count
    repeated: Count
    rows: Count
    changed_words: Count
    words: Count
    rows_sha256: Sha256
    sample: tuple[Sample, ...]

    @property
    def split(self) -> str:
        """The split whose rows have variants."""
        return str(self.settings.get("split", TRAIN))

    @property
    def title(self) -> str:
        """Of what there are variants, as a heading."""
        return "Variants of training rows" if self.split == TRAIN else f"Variants of rows of {self.split}"

    @property
    def summary(self) -> str:
        """How many there are, and how they were made, in one line; of hashes the beginning."""
        settings = ", ".join(f"{name} {short(value)}" for name, value in self.settings.items())
        return f"{self.rows:,} variants of rows of {self.split} by {self.method} ({settings})"

    @property
    def multiplier(self) -> float:
        """How many times as many rows there are with them."""
        return 1 + self.rows / self.source_rows

    @property
    def change_rate(self) -> float:
        """Share of words that were changed, in the sentences that a variant changes."""
        return self.changed_words / max(1, self.words)

    def lines(self) -> dict[str, int | float | str]:
        """What was tried, left out and kept, by what the card and the terminal call it."""
        return {
            "method": self.method,
            "source rows": self.source_rows,
            "variants tried": self.tried,
            "given up, no word left to change or to keep": self.tried - self.generated,
            "dropped, as an original reads the same": self.unchanged,
            "dropped, as another variant reads the same": self.repeated,
            "variants kept": self.rows,
            "multiplier": round(self.multiplier, 3),
            "words changed": round(self.change_rate, 4),
        }


class WindowsRecord(Part):
    """Longer rows were read by windows, the mean of whose logits is the teacher's answer.

    Attributes:
        size: most tokens of a window, special tokens counted in.
        stride: tokens that a window has in common with the one before.
    """

    size: int = Field(ge=1, le=MAX_SEQ_LENGTH)
    stride: int = Field(ge=0, le=MAX_SEQ_LENGTH)


def reading(windows: WindowsRecord | None, max_seq_length: int) -> str:
    """How much the teacher read at once, in a few words."""
    if windows is None:
        return f"at most {max_seq_length} tokens"
    return f"longer texts by windows of {windows.size} tokens that overlap by {windows.stride}, their logits averaged"


def shared_settings(settings: dict[str, Setting]) -> dict[str, Setting]:
    """The settings apart from those that name rows: the same for all versions of a set."""
    # Hashes of rows begin with "source.". Everything else has to agree for logits to be comparable.
    return {key: value for key, value in settings.items() if not key.startswith("source.")}


def fingerprint(settings: dict[str, Setting]) -> str:
    """SHA-256 of the settings, independent of their order."""
    return json_sha256(settings)
