"""The parts of a ``distill.json``. A stranger may have written them: numbers have bounds, names and hashes a form."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pipeline.tasks import SPLIT_PATTERN, Metric

MAX_COUNT = 2**40  # rows, bytes, parameters
MAX_VOCABULARY, MAX_HIDDEN_SIZE = 2**22, 2**16
SHA256_PATTERN = r"^[0-9a-f]{64}$"
TIME_PATTERN = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d$"
Setting = str | int | float | bool


def _real_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what a seed may be
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
SplitName = Annotated[str, Field(pattern=SPLIT_PATTERN)]
Time = Annotated[str, Field(pattern=TIME_PATTERN), AfterValidator(_real_time)]


class Record(BaseModel):
    """A part of a set's record: never changed, and without a key that this release does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class SplitRecord(Record):
    """The source rows of a split; ``expected_rows`` is what the task's manifest says of the whole split."""

    rows: Count
    expected_rows: Count | None
    rows_sha256: Sha256


class PartialSplit(SplitRecord):
    """A split of which ``absent`` source rows have no logits in the set."""

    absent: Count = 0


class Version(Record):
    """An earlier version of a set, of which it still has shards."""

    format_version: int
    settings: dict[str, Setting]


class TaskRecord(Record):
    """What a reader needs to know of the task."""

    name: str
    version: Count
    is_pair: bool
    metrics: tuple[Metric, ...] = Field(min_length=1)
    licence: str


class TeacherRecord(Record):
    """Who spoke; ``labels`` is the order of the teacher's own outputs before they were put in the task's order."""

    name: str
    revision: str | None
    weights_sha256: Sha256
    num_parameters: Count
    labels: tuple[str, ...]


class TokenizerRecord(Record):
    """The tokenizer that the ids belong to; where it has no padding token, ``pad_id`` is one past the vocabulary."""

    sha256: Sha256
    vocabulary_size: int = Field(ge=1, le=MAX_VOCABULARY)
    pad_id: Count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pad_id > self.vocabulary_size:
            raise ValueError(f"pad_id {self.pad_id} is beyond the vocabulary of {self.vocabulary_size}")
        return self


class CorpusRecord(Record):
    """What a reader needs to know of the corpus, and how it was cut into sequences."""

    name: str
    version: Count
    language: str
    licence: str
    packing: str
    min_seq_length: Count
    validation_every: Count


class MaskingRecord(Record):
    """How sequences were masked: with these, the sequence and the copy, the same positions come out again."""

    kind: str
    probability: float = Field(ge=0, le=1)
    num_copies: Count
    seed: Whole
    mask_id: Count
