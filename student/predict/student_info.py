"""What a caller needs to know of a student, and what a file for the engine holds beside its tensors."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from safetensors import SafetensorError, safe_open

from pipeline.errors import IntegrityError
from pipeline.tasks.target import Target
from pipeline.tasks.temperature import Calibration
from pipeline.tasks.text_drift import InputProfile
from student.predict.certificate import CertifiedMargin

INFO = "distill"  # key of the metadata that holds a `FileInfo`


class StudentInfo(BaseModel):
    """What a caller needs to know of a student.

    Attributes:
        task: what it was trained for.
        target: what its logits mean.
        is_pair: whether it takes two texts per input.
        labels_words: whether it labels the words of an input.
        max_seq_length: maximum tokens of an input, including special ones. Longer inputs are truncated.
        table_dtype: how its tables are stored.
        calibration: what makes probabilities of its logits.
        profile: what inputs were like that it was not trained on.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    task: str
    target: Target
    is_pair: bool
    labels_words: bool = False
    max_seq_length: int
    table_dtype: str
    calibration: Calibration | None = None
    profile: InputProfile | None = None

    @classmethod
    def of(cls, config: Any, labels_words: bool, **more: Any) -> Self:
        """The info of a student with a config, and what a subclass adds."""
        return cls(
            task=config.task,
            target=config.target,
            is_pair=getattr(config, "is_pair", False),  # a student of labelled words reads one text
            labels_words=labels_words,
            max_seq_length=config.max_seq_length,
            table_dtype=config.table_dtype,
            calibration=config.calibration,
            profile=config.profile,
            **more,
        )


class FileInfo(StudentInfo):
    """The content of a file that the engine does not read, about one of its students.

    Attributes:
        name: of its task in the file: that of its folder if there are several.
        num_special_tokens: that stand around the texts of an input.
        text_columns: what the task calls the columns of its texts.
        thresholds: of a multi-label student, the probability of each label above which it is predicted.
        certificate: the margin above which it answers, if its run had a certificate.
        made_from: the SHA-256 of the run's files by name, see `file_hashes`.
    """

    name: str
    num_special_tokens: int = Field(ge=0)
    text_columns: tuple[tuple[str, ...], ...] | None = None
    thresholds: dict[str, float] = Field({}, max_length=2**16)
    certificate: CertifiedMargin | None = None
    made_from: dict[str, str] = Field({}, max_length=8)


FILE_INFOS: TypeAdapter[list[FileInfo]] = TypeAdapter(Annotated[list[FileInfo], Field(min_length=1, max_length=1024)])


def read_infos(path: Path) -> dict[str, FileInfo]:
    """What a file holds of its students, by their names.

    Raises:
        IntegrityError: if it is not a student's.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"{path}: not a student's file: {error}") from error
    try:
        return {info.name: info for info in FILE_INFOS.validate_json(metadata.get(INFO, ""))}
    except ValueError as error:
        raise IntegrityError(
            f"{path}: does not describe its student. Write it with `distill export RUN --file`"
        ) from error
