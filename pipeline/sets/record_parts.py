"""The parts of a ``distill.json``. The file may be hostile, so numbers have bounds, and names have patterns."""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from pipeline.errors import short
from pipeline.record_file import json_sha256
from pipeline.tasks.task import HUB_ID, HUB_LICENSE, LANGUAGE, SPLIT_PATTERN, TRAIN, MethodName, Metric, Names

# Far above any real set, and low enough that sums and products of a few counts stay within int64.
MAX_COUNT = 2**40  # rows, bytes, parameters
MAX_VOCABULARY = 2**22
MAX_SEQ_LENGTH = 2**20
UNLABELLED = "unlabelled"  # origin of such rows
GOLD = "gold"  # name of the teacher of a set that has the labels alone
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
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # range of seeds
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
        rows: their number.
        expected_rows: the number in the task's manifest.
        rows_sha256: hash of their texts and gold.
        absent: how many of them are missing in the set.
    """

    rows: Count
    expected_rows: Count | None = None
    rows_sha256: Sha256
    absent: Count = 0


class Shard(Part):
    """One Parquet file: the source rows ``start`` to ``stop`` (exclusive) of a split.

    Attributes:
        folder: the folder of the file: the kind of its rows, or the signal of layers.
        split: the rows' split.
        index: number of the file in the split, from 0.
        count: how many files the split has.
        start: the first source row. For a corpus, the first document in which a sequence may begin.
        stop: the row after the last one.
        rows: rows of the file. This, ``bytes`` and ``sha256`` are recorded when the set is complete.
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
            raise ValueError(f"begins at row {self.start:,}, after its end at row {self.stop:,}")
        return self

    def unmeasured(self) -> Self:
        return self.model_copy(update={"rows": None, "bytes": None, "sha256": None})

    def in_folder(self, folder: KindName | LayersName) -> Self:
        """Returns the shard in another folder of the set for the same rows, without measurements."""
        return self.unmeasured().model_copy(update={"folder": folder})

    @property
    def range(self) -> Range:
        """The rows of the shard, and the version that wrote them."""
        return self.split, self.index, self.count, self.start, self.stop, self.version

    @property
    def path(self) -> str:
        """Path inside the set, by the hub's naming of split files."""
        # `datasets` finds the splits of a folder by names of this form.
        return f"{self.folder}/{self.split}-{self.index:05d}-of-{self.count:05d}.parquet"


class FileRecord(Part):
    """A Parquet file of a set that is not a shard."""

    rows: Count
    bytes: Count
    sha256: Sha256


class Version(Part):
    """An earlier version of a set that wrote some of its shards."""

    format_version: int
    settings: dict[str, Setting]


class HubDataset(Part):
    """A data set on the Hugging Face hub."""

    id: str = Field(pattern=HUB_ID)
    config: str | None = Field(None, max_length=100)


class TaskRecord(Part):
    """What readers need of the task.

    Attributes:
        text_columns: names of the columns of the first and of the second sentences in the task's files. None in sets
            that older versions wrote.
        label_columns: names of the column of the gold in the task's files. None also if each label has a column.
        score_range: the lowest and the highest gold score. None for labels.
        license: the hub's identifier of the licence of the texts.
        language: ISO 639-1 code of the texts.
        hub: the data set of the hub from which the rows were read.
    """

    name: str
    version: Count
    is_pair: bool
    metrics: tuple[Metric, ...] = Field(min_length=1)
    licence: str
    text_columns: tuple[Names, ...] | None = Field(None, min_length=1, max_length=2)
    label_columns: Names | None = None
    score_range: tuple[FiniteFloat, FiniteFloat] | None = None
    license: str | None = Field(None, pattern=HUB_LICENSE)
    language: str | None = Field(None, pattern=LANGUAGE)
    hub: HubDataset | None = None


class TeacherRecord(Part):
    """The teacher: a model with known weights, or the source of predictions that were imported from a file.

    Attributes:
        name: the name of the model, or of the source of imported predictions.
        revision: the revision of the model on the hub.
        weights_sha256: hash of its weights.
        answers_sha256: hash of the file of imported predictions, which replaces the hash of weights.
        num_parameters: the number of parameters of the model.
        labels: the order of the teacher's own outputs before they were put in the task's order.
        base_model: the hub id of the model, or of the model that it was fine-tuned from.
    """

    name: str
    revision: str | None = None
    weights_sha256: Sha256 | None = None
    answers_sha256: Sha256 | None = None
    num_parameters: Count | None = None
    labels: tuple[str, ...]
    base_model: str | None = Field(None, pattern=HUB_ID)

    @model_validator(mode="after")
    def _one_hash(self) -> Self:
        # Fingerprints identify a teacher by this hash, so exactly one has to be known.
        if (self.weights_sha256 is None) == (self.answers_sha256 is None):
            raise ValueError("weights_sha256, answers_sha256: a teacher has exactly one of them")
        if (self.weights_sha256 is None) != (self.num_parameters is None):
            raise ValueError("num_parameters: required for a teacher with known weights, and forbidden for others")
        return self

    @property
    def sha256(self) -> str:
        """Hash of the weights, or of the file of predictions."""
        return self.weights_sha256 or self.answers_sha256 or ""

    @property
    def is_imported(self) -> bool:
        return self.answers_sha256 is not None

    @property
    def is_gold(self) -> bool:
        """Whether there is no teacher: the logits are made of gold labels, as by ``quickstart`` with ``none``."""
        return self.is_imported and self.name == GOLD


class TokenizerRecord(Part):
    """The tokenizer of the ids. Without a padding token, ``pad_id`` is one past the vocabulary."""

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
    """What readers need of the corpus, and how it was cut into sequences. See also `TaskRecord`."""

    name: str
    version: Count
    language: str
    licence: str
    packing: str
    min_seq_length: Count
    validation_every: Count
    license: str | None = Field(None, pattern=HUB_LICENSE)
    hub: HubDataset | None = None


class MaskingRecord(Part):
    """How sequences were masked.

    Together with the sequence and the copy, these settings determine the masked positions.
    """

    kind: str
    probability: float = Field(ge=0, le=1)
    num_copies: Count
    seed: Whole
    mask_id: Count


class Sample(Part):
    """An augmented row, and its original row."""

    source_row: Count
    variant: Count
    origin: str
    original: tuple[str, ...]
    text: tuple[str, ...]


COLLECTED = "collected"  # setting of unlabelled rows: how many of them, the last ones, have the answers of a cascade


class UnlabelledRecord(Part):
    """The rows without gold after the task's own rows in ``train``, and the counts of rows that were left out.

    Attributes:
        source: the source of their text.
        settings: everything that determines them besides the task's rows.
        first_row: source row of the first one.
        found: rows, or pairs, in the text.
        empty: left out because a sentence has no word.
        near_dev: left out as near copies of rows of other splits than ``train``.
        repeated: left out because the same text is in ``train`` or in an earlier row.
        rows: the added rows. The remaining rows of ``found`` were not drawn.
        cut: how many of these are longer than the teacher's input.
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
        return self.found - self.empty - self.near_dev - self.repeated - self.rows

    def lines(self) -> dict[str, int | str]:
        """Returns what was found, left out and added, under the names in the card and the terminal."""
        return {
            "source": self.source,
            "pairs from": str(self.settings.get("pairs", "none")),
            "rows found": self.found,
            "left out: a sentence has no word": self.empty,
            "left out: near copies of dev rows": self.near_dev,
            "left out: same text as another row": self.repeated,
            "left out: not drawn": self.undrawn,
            "rows added": self.rows,
            "of these truncated to the teacher's maximum length": self.cut,
        }


class AugmentationRecord(Part):
    """How the rows of a split were augmented, with counts.

    Attributes:
        method: the name of the method.
        settings: everything that determines the rows.
        source_rows: the task's own rows of the split.
        tried: requested variants in total.
        generated: those that the method made.
        unchanged: dropped because an original has the same text.
        repeated: dropped because an earlier variant has the same text.
        rows: the remaining variants.
        changed_words: their words that differ from the original.
        words: the words of the sentences that they change.
        rows_sha256: hash of their keys and texts.
        sample: a few variants, for people.
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
        return str(self.settings.get("split", TRAIN))

    @property
    def title(self) -> str:
        """The rows that have variants, as a heading."""
        return "Variants of training rows" if self.split == TRAIN else f"Variants of rows of {self.split}"

    @property
    def summary(self) -> str:
        """Their number and how they were made, in one line. Hashes are shortened."""
        settings = ", ".join(f"{name} {short(value)}" for name, value in self.settings.items())
        return f"{self.rows:,} variants of rows of {self.split} by {self.method} ({settings})"

    @property
    def multiplier(self) -> float:
        """The factor by which variants increase the number of rows."""
        return 1 + self.rows / self.source_rows

    @property
    def change_rate(self) -> float:
        """Share of words that were changed, in the sentences that a variant changes."""
        return self.changed_words / max(1, self.words)

    def lines(self) -> dict[str, int | float | str]:
        """Returns what was tried, dropped and kept, under the names in the card and the terminal."""
        return {
            "method": self.method,
            "source rows": self.source_rows,
            "variants tried": self.tried,
            "given up: no word left to change or to keep": self.tried - self.generated,
            "dropped: same text as an original": self.unchanged,
            "dropped: same text as another variant": self.repeated,
            "variants kept": self.rows,
            "multiplier": round(self.multiplier, 3),
            "words changed": round(self.change_rate, 4),
        }


class WindowsRecord(Part):
    """Longer rows were read by windows. The teacher's answer is the mean of their logits.

    Attributes:
        size: maximum number of tokens of a window, including special tokens.
        stride: tokens that a window shares with the previous one.
    """

    size: int = Field(ge=1, le=MAX_SEQ_LENGTH)
    stride: int = Field(ge=0, le=MAX_SEQ_LENGTH)


def reading(windows: WindowsRecord | None, max_seq_length: int) -> str:
    """Returns how much the teacher read at once, in a few words."""
    if windows is None:
        return f"at most {max_seq_length} tokens"
    return f"longer texts by windows of {windows.size} tokens that overlap by {windows.stride}, their logits averaged"


def shared_settings(settings: dict[str, Setting]) -> dict[str, Setting]:
    """Returns the settings that do not concern rows, which are the same for all versions of a set."""
    # Hashes of rows begin with "source.". Everything else has to agree for logits to be comparable.
    return {key: value for key, value in settings.items() if not key.startswith("source.")}


def fingerprint(settings: dict[str, Setting]) -> str:
    """SHA-256 of the settings, independent of their order."""
    return json_sha256(settings)
