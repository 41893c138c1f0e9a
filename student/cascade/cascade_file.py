"""``cascade.json``: the stages of a cascade, from which confidence each answers, and what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.errors import ConfigError, IntegrityError
from pipeline.file_names import STUDENT_FILE
from pipeline.files import make_folder
from pipeline.parsing import parse_model
from pipeline.record_file import read_record, write_record

CASCADE_FILE = "cascade.json"


class StageRecord(BaseModel):
    """A stage.

    Attributes:
        source: folder or file of a student, as an absolute path, or URL.
        threshold: the margin above which it answers. None for the last stage, which answers all remaining inputs.
        cost: of an answer, in any unit.
        hashes: SHA-256 of the files of a student, by name. Empty for others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    threshold: float | None = Field(None, ge=-1, le=1)
    cost: float = Field(gt=0, allow_inf_nan=False)
    hashes: dict[str, str] = {}


class Score(BaseModel):
    """What answers to rows are worth.

    Attributes:
        cost: mean cost, as a share of the last stage's.
        agreement: share of rows with the label of the last stage.
        accuracy: share of rows with the gold label. None without gold.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cost: float
    agreement: float
    accuracy: float | None = None


class StageScore(Score):
    """A stage alone, and the share of rows that it answers in the cascade."""

    stage: str
    share: float


class Measured(BaseModel):
    """What was measured on the rows of a split.

    Attributes:
        rows: their number.
        stages: each alone.
        cascade: with its thresholds.
        curve: with other thresholds, from the cheapest on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    stages: tuple[StageScore, ...]
    cascade: Score
    curve: tuple[Score, ...]


class CascadeRecord(BaseModel):
    """The content of the file.

    Attributes:
        stages: from the cheapest to the last.
        timeout: seconds that an answer of the server may take.
        chosen: what the thresholds were chosen by: the rows, and the certificate or the target.
        measured: on dev rows, for each split.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = Field(1, ge=1, le=1)
    stages: tuple[StageRecord, ...] = Field(min_length=2, max_length=8)
    timeout: float = Field(gt=0)
    chosen: dict[str, Any]
    measured: dict[str, Measured]

    @property
    def names(self) -> list[str]:
        """The names of the stages, which contain no secret."""
        return stage_names([stage.source for stage in self.stages])


def write_cascade(folder: Path, record: CascadeRecord) -> None:
    """Writes a cascade's folder."""
    make_folder(folder)
    write_record(folder / CASCADE_FILE, record.model_dump(mode="json"))


def read_cascade(folder: Path) -> CascadeRecord:
    """Reads a cascade.

    Raises:
        IntegrityError: if the file is damaged, or its thresholds do not fit its stages.
    """
    path = folder / CASCADE_FILE
    try:
        record = parse_model(CascadeRecord, read_record(path), str(path))
    except ConfigError as error:
        raise IntegrityError(f"{path}: not a cascade: {error}") from error
    is_last = [stage.threshold is None for stage in record.stages]
    if is_last != [False] * (len(is_last) - 1) + [True]:
        raise IntegrityError(f"{path}: every stage but the last has a threshold, and these have not")
    return record


def is_url(source: str) -> bool:
    """Returns whether a source is a server."""
    return source.lower().startswith(("http://", "https://"))


def address(source: str) -> str:
    """Returns scheme, host and path of a URL. A user, a password and a query may be secret."""
    scheme, _, rest = source.partition("://")
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def stage_names(sources: Sequence[str]) -> list[str]:
    """Returns the name of each stage: of a server its address, of a student its folder or file, without the path.

    Equal names get the number of their stage, because clients must not see other folders of the server.
    """
    paths = [Path(source) for source in sources]
    names = [path.parent.name if path.name == STUDENT_FILE else path.name for path in paths]
    return [
        address(source) if is_url(source) else name if names.count(name) == 1 else f"{name} ({number})"
        for number, (source, name) in enumerate(zip(sources, names, strict=True), start=1)
    ]


def password_problems(sources: Sequence[str]) -> list[str]:
    """Returns the problems of URLs with a password in them, which the file would contain."""
    users = {one: one.partition("://")[2].partition("/")[0].rpartition("@")[0] for one in sources if is_url(one)}
    return [
        f"--stage {address(source)}: contains a password, which {CASCADE_FILE} would store. Write "
        "'https://${USER}:${PASSWORD}@…' with the names of environment variables."
        for source, user in users.items()
        if user and "$" not in user
    ]
