"""Settings of the applications; free of torch, so that ``--help`` is quick."""

import re
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config import Config, JsonFlags, StoreFlags, UnverifiedFlags
from pipeline.errors import did_you_mean

TRANSFORMERS = {"bert-base": "BERT-base", "distilbert": "DistilBERT", "tinybert-4": "TinyBERT-4"}
PEERS = TRANSFORMERS | {"model2vec": "model2vec"}
PICTURES = (".svg", ".png")
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#*]+")  # as browsers send it; null is that of a local file


class BenchConfig(JsonFlags):
    """Flags of ``distill bench``."""

    student: Path | None = Field(None, description="Folder of a run. (default: a new student of the default size)")
    peer: tuple[str, ...] = Field(
        (),
        description=f"Compare with this peer: {', '.join(PEERS)}, or the folder of another run; repeat for more. "
        "(default: all of these)",
    )
    seconds: float = Field(90, gt=0, le=86_400, description="About how long to measure.")
    output: Path | None = Field(None, description="Draw a chart, too, in this .svg or .png file.")

    @field_validator("peer")
    @classmethod
    def _known(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        for name in peers:
            if name not in PEERS and not Path(name).is_dir():
                raise ValueError(f"unknown peer {name!r}: {did_you_mean(name, PEERS)}")
        return peers

    @field_validator("output")
    @classmethod
    def _a_picture(cls, output: Path | None) -> Path | None:
        if output is not None and (output.suffix not in PICTURES or output.is_dir()):
            raise ValueError(f"{output}: give the name of a file that ends in {' or '.join(PICTURES)}")
        return output

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers that are wanted."""
        return self.peer or tuple(PEERS)


class DemoConfig(Config):
    """Flags of ``distill demo``."""

    output_dir: Path = Field(Path("demo"), description="Folder for data, teachers, logit sets and runs.")


class QuickstartConfig(JsonFlags):
    """Flags of ``distill quickstart``."""

    file: Path = Field(description="Any file of rows with text and labels.", json_schema_extra={"argument": True})
    text: str = Field(description="Name of the column of text.")
    text2: str | None = Field(None, description="Name of the column of second texts, if a row is a pair.")
    label: str = Field(description="Name of the column of labels, scores, lists of labels, or labels of words.")
    model_name_or_path: str = Field(
        description="Encoder to fine-tune as the teacher: a hub id or a folder; none: learn from the labels alone."
    )
    name: str | None = Field(
        None, pattern=r"^[a-z][a-z0-9_-]*$", description="Name of the task. (default: that of the file)"
    )
    num_train_epochs: int = Field(3, ge=1, description="Passes of the teacher over the training rows.")
    output_dir: Path | None = Field(None, description="Folder of everything. (default: quickstart/NAME)")

    @property
    def task_name(self) -> str:
        """The task's name: as given, or the file's in small letters."""
        stem = re.sub(r"[^a-z0-9]+", "-", self.file.name.split(".")[0].lower()).strip("-")
        return self.name or (stem if stem[:1].isalpha() else f"task-{stem}".strip("-"))

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return self.output_dir or Path("quickstart") / self.task_name

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher is fine-tuned."""
        return self.model_name_or_path != "none"


class ReportConfig(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill report``."""

    helps: ClassVar = {"json_output": "Print where the page is and the pictures' figures as JSON."}
    set_or_run: str = Field(
        description="A logit set (a path, or a name in the store), or the folder of a run or a sweep.",
        json_schema_extra={"argument": True},
    )
    output: Path | None = Field(
        None, description="The page. (default: NAME-report.html here; of a run NAME-run-report.html)"
    )


class ResultsConfig(JsonFlags):
    """Flags of ``distill results``."""

    tasks: str | None = Field(None, description="Tasks, with commas. (default: those of GLUE whose data are found)")
    manifest: tuple[str, ...] = Field((), description="YAML file with a task of your own, too; repeat for more.")
    data: Path | None = Field(None, description="Folder with the tasks' rows. (default: DISTILL_DATA, then the hub)")
    model_name_or_path: str | None = Field(None, description="Encoder to fine-tune: a hub id or a folder.")
    teachers: Path | None = Field(None, description="Folder with a teacher for each task, instead of fine-tuning.")
    teacher_seeds: int = Field(1, ge=1, description="Teachers of a task, of which the best on held-out rows is kept.")
    seeds: int = Field(3, ge=1, description="Students of each kind with different seeds.")
    experiment: Path | None = Field(
        None, description="YAML file with the sets and students to compare. (default: students, and on gold alone)"
    )
    output_dir: Path = Field(Path("results"), description="Folder of everything, and of RESULTS.md.")
    plan: bool = Field(False, description="Print the commands, and stop.")

    @model_validator(mode="after")
    def _some_teacher(self) -> Self:
        if self.model_name_or_path is None and self.teachers is None:
            raise ValueError("no teacher: give --model-name-or-path ENCODER to fine-tune, or --teachers FOLDER")
        return self

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks asked for by name."""
        return tuple(name.strip() for name in (self.tasks or "").split(",") if name.strip())


class ServeConfig(Config):
    """Flags of ``distill serve``; the limits have text-embeddings-inference's names."""

    runs: tuple[str, ...] = Field(
        description="Folders of runs, or files of students; each is served under its name, the first one also without.",
        json_schema_extra={"argument": True},
    )
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for all that this machine has.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 for any that is free.")
    workers: int = Field(1, ge=1, le=256, description="Processes, which share the students' memory.")
    max_concurrent_requests: int = Field(512, ge=1, description="Requests at a time, per process; more get a 429.")
    max_client_batch_size: int = Field(1024, ge=1, description="Texts, or pairs of them, in a request.")
    payload_limit: int = Field(2_000_000, ge=1, description="Largest request, in bytes.")
    cors_allow_origin: tuple[str, ...] = Field(
        (),
        description="Let pages from this origin ask the server, such as https://example.org, or * for any; repeat for "
        "more. (default: none)",
    )

    @field_validator("cors_allow_origin")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; write it as https://example.org or http://localhost:3000")
        return origins
