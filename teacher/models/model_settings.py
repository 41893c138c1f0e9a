"""Flags that choose a teacher and its precision. The module does not import torch, so that ``--help`` is quick."""

from typing import ClassVar, Literal

from pydantic import Field

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from pipeline.shared_settings import PLACE
from pipeline.tasks.task import Corpus, Task

Precision = Literal["fp32", "bf16", "fp16"]


class ModelFlags(Settings):
    """The model: a name or a folder, and its revision."""

    panel: ClassVar = "The teacher"
    model_name_or_path: str | None = Field(
        None, description="Teacher: a hub id or a folder. Default: the task's.", json_schema_extra=PLACE
    )
    model_revision: str | None = Field(None, description="Branch, tag or commit on the hub.", json_schema_extra=PLACE)

    def teacher_for(self, subject: Task | Corpus) -> tuple[str, str | None]:
        """Returns the teacher to load and its revision: the named one, or the default of the task or corpus."""
        if self.model_name_or_path:
            return self.model_name_or_path, self.model_revision
        if subject.teacher is None:
            kind = "task" if isinstance(subject, Task) else "corpus"
            raise ConfigError(f"--model-name-or-path: {kind} {subject.name!r} has no default teacher. Name one.")
        return subject.teacher.model, self.model_revision or subject.teacher.revision


class ForwardFlags(Settings):
    """The settings of a forward pass: the precision, and the maximum input length."""

    panel: ClassVar = "The teacher"
    precision: Precision = Field("fp32", description="Precision of the teacher's forward pass.")
    max_seq_length: int = Field(128, ge=4, description="Maximum input length in tokens.")


class BatchFlags(ForwardFlags):
    """The settings of a forward pass, and of its batches."""

    panel: ClassVar = ForwardFlags.panel
    max_tokens_per_batch: int | None = Field(
        None,
        ge=1,
        description="Padded tokens per forward pass. Default: 2048 on CPU, 32768 on GPU.",
        json_schema_extra={"decides": False},
    )
