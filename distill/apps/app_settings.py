"""Settings of the applications. The module does not import torch, so that ``--help`` is quick."""

import re
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from pipeline.parsing import names_of
from pipeline.settings import Settings
from pipeline.shared_settings import JsonFlags, StoreFlags, UnverifiedFlags
from student.cascade.cascade_settings import CollectFlags
from student.settings import SweepSettings

# as browsers send it, which is "null" for a page opened from a file
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#*]+")


class Demo(Settings):
    """Two generated tasks in place of a file."""

    chosen_by: ClassVar = "demo"
    demo: bool = Field(
        False, description="Run all steps on two small generated tasks instead, offline, in a few minutes."
    )


class OwnFile(Settings):
    """The user's file, and the teacher that is made of it."""

    file: Path = Field(description="File of rows with texts and labels.", json_schema_extra={"argument": True})
    text: str = Field(description="Column of the texts.")
    text2: str | None = Field(None, description="Column of the second texts, if rows are pairs.")
    label: str = Field(description="Column of the labels: classes, scores, lists of labels, or labels of words.")
    columns: tuple[str, ...] = Field(
        (), description="Column by which you find a row again, such as a number. Shown beside rows. Repeat for more."
    )
    group: str | None = Field(
        None,
        description="Column whose rows with the same value stay in one split, such as a customer. Default: near copies "
        "stay in one split.",
    )
    test: Path | None = Field(
        None, description="File of test rows with the same columns. Default: a tenth of the rows of FILE."
    )
    model_name_or_path: str = Field(
        description="Encoder to fine-tune as the teacher: a hub id or a folder. none: learn from the labels alone."
    )
    name: str | None = Field(
        None, pattern=r"^[a-z][a-z0-9_-]*$", description="Name of the task. Default: the name of the file."
    )
    num_train_epochs: int | None = Field(
        None,
        ge=1,
        description="Epochs of the teacher's fine-tuning. Default: 3, up to 20 for fewer than 2,134 rows, and twice as "
        "many if it then never predicts one of the labels.",
    )
    num_variants: int = Field(
        5, ge=0, description="Variants per row, with masked and other words, for the teacher to label. 0: none."
    )
    unlabelled: Path | None = Field(None, description="File of more texts for the teacher to label.")

    @model_validator(mode="after")
    def _has_a_teacher_for_more_text(self) -> Self:
        if self.unlabelled is not None and not self.has_teacher:
            raise ValueError("--unlabelled: needs a teacher that labels the texts, not --model-name-or-path none")
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of the texts, one or two."""
        return (self.text,) if self.text2 is None else (self.text, self.text2)

    @property
    def task_name(self) -> str:
        """The task's name: as given, or the file's in small letters."""
        stem = re.sub(r"[^a-z0-9]+", "-", self.file.name.split(".")[0].lower()).strip("-")
        return self.name or (stem if stem[:1].isalpha() else f"task-{stem}".strip("-"))

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher is fine-tuned."""
        return self.model_name_or_path != "none"


class QuickstartSettings(JsonFlags):
    """Flags of ``distill quickstart``."""

    source: OwnFile | Demo
    output_dir: Path | None = Field(None, description="Output folder. Default: quickstart/NAME, or demo.")

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        usual = Path("quickstart") / self.source.task_name if isinstance(self.source, OwnFile) else Path("demo")
        return self.output_dir or usual


class ReportSettings(StoreFlags, UnverifiedFlags, JsonFlags):
    """Flags of ``distill report``."""

    helps: ClassVar = {"json_output": "Print the page's path and the numbers of its pictures as JSON."}
    set_or_run: str = Field(
        description="Logit set (a path, or a name in the store), or the folder of a run, a sweep or a cascade.",
        json_schema_extra={"argument": True},
    )
    output: Path | None = Field(
        None, description="Path of the page. Default: NAME-report.html, for a run NAME-run-report.html."
    )


class ExperimentFlags(Settings):
    """The flags that only experiments of several tasks have."""

    panel: ClassVar = "Experiments"
    chosen_by: ClassVar = "experiment"
    experiment: str = Field(
        description="Compare teachers, students and baselines on several tasks: glue (the table of the README), "
        "papers, or a YAML file of sets and students."
    )
    manifest: tuple[str, ...] = Field((), description="YAML file of an additional task. Repeat for more.")
    data: Path | None = Field(
        None, description="Folder with the rows of the tasks. Default: DISTILL_DATA, then the hub."
    )
    model_name_or_path: str | None = Field(None, description="Encoder to fine-tune: a hub id or a folder.")
    teachers: Path | None = Field(
        None, description="Folder with a teacher for each task. Default: those of the manifests, from the hub."
    )
    teacher_seeds: int = Field(
        1, ge=1, description="Number of fine-tuned teachers per task. The best one on held-out rows is used."
    )
    plan: bool = Field(False, description="Print the commands and stop.")

    @property
    def finetunes(self) -> bool:
        """Whether teachers are fine-tuned."""
        return self.teachers is None and self.model_name_or_path is not None


class ExperimentSettings(ExperimentFlags):
    """Settings of ``distill sweep --experiment``."""

    tasks: str | None = None
    seeds: int = Field(3, ge=1)
    output_dir: Path = Path("results")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks named by the flag."""
        return names_of(self.tasks)


class SweepFlags(SweepSettings):
    """Flags of ``distill sweep``: a grid of one set or several, or an experiment of several tasks."""

    helps: ClassVar = {
        "tasks": "Comma-separated sets to train on together, with one encoder and a head each. With --experiment: the "
        "tasks to compare. Default: the GLUE tasks whose data are found.",
        "seeds": "Number of seeds for each combination of values, with --experiment for each student (there by "
        "default 3).",
        "output_dir": "Folder of the runs. Default: sweeps/NAME-OF-SET, with --experiment results, with RESULTS.md.",
    }
    experiments: ExperimentFlags | None = None


class ServeSettings(CollectFlags):
    """Flags of ``distill serve``. The limits have the names of text-embeddings-inference."""

    runs: tuple[str, ...] = Field(
        description="Folders of runs, or files of students. Each is served under /runs/NAME, the first one also at /.",
        json_schema_extra={"argument": True},
    )
    host: str = Field("127.0.0.1", description="Address to listen on. 0.0.0.0: all addresses of this machine.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on. 0: any free port.")
    workers: int = Field(1, ge=1, le=256, description="Number of processes. They share the students' memory.")
    max_concurrent_requests: int = Field(
        512, ge=1, description="Maximum number of concurrent requests per process. More get status 429."
    )
    max_client_batch_size: int = Field(1024, ge=1, description="Maximum number of texts or pairs per request.")
    payload_limit: int = Field(2_000_000, ge=1, description="Maximum size of a request in bytes.")
    cors_allow_origin: tuple[str, ...] = Field(
        (),
        description="Allow requests from pages of this origin, such as https://example.org, or * for all. Repeat for "
        "more. Default: none.",
    )

    @model_validator(mode="after")
    def _one_collects(self) -> Self:
        # A file of one task would be read as that of another.
        if self.collect is not None and len(self.runs) > 1:
            raise ValueError(f"--collect {self.collect}: takes one cascade, but {len(self.runs)} runs are served")
        return self

    @field_validator("cors_allow_origin")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin. Write it as https://example.org or http://localhost:3000."
                )
        return origins
