"""The commands of a task: fine-tune teachers, ask the best one, train students."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.apps.results.commands import Command
from distill.apps.results.config import ResultsConfig
from distill.apps.results.experiment import TaskParts, as_file
from pipeline.errors import DataError
from pipeline.sets.record import FILE_NAME
from pipeline.sources import Source, rows_sha256
from pipeline.tasks.task import Task
from pipeline.training.run_record import FINETUNE_RECORD, RUN_RECORD, quality, read_run_record

FIRST_SEED = 42


@dataclass(frozen=True)
class TaskPlan:
    """A task, its rows, what is compared on it, and where that lies.

    Attributes:
        config: the settings.
        task: its manifest.
        manifest: the manifest's file, if it is not one that comes with the package.
        source: its rows.
        parts: what the experiment says of it.
        start: the task whose teachers its own start from, each from that with its seed; None for the encoder.
        absent_start: the task that ``start`` would be, if its training rows were here.
    """

    config: ResultsConfig
    task: Task
    manifest: Path | None
    source: Source
    parts: TaskParts
    start: "TaskPlan | None" = None
    absent_start: str | None = None

    @property
    def records(self) -> Path:
        """Folder of what is known of the task: commands that have finished, and what was measured."""
        return self.config.output_dir / "cells" / self.task.name

    @property
    def teachers_folder(self) -> Path:
        """Folder of the teachers that are fine-tuned for the task, by their seeds."""
        return self.config.output_dir / "teachers" / self.task.name

    @property
    def student_seeds(self) -> range:
        """Seeds of each kind of student."""
        return range(FIRST_SEED, FIRST_SEED + self.config.seeds)

    @property
    def chain(self) -> list["TaskPlan"]:
        """The tasks whose teachers have to be there one after another, this one's at last."""
        return [*(self.start.chain if self.start else ()), self]

    def finetune(self) -> list[Command]:
        """The commands that make this task's teachers; none if they are there."""
        if self.config.teachers is not None:
            return []
        commands, rows = [], self._rows_sha256()
        for folder in self._teachers():
            encoder = str(self.started_from(folder) or self.config.model_name_or_path)
            flags = self._rows("--model-name-or-path", encoder, "--output-dir", str(folder), "--seed", folder.name)
            reads: list[str | Path] = [rows, *weights_of(Path(encoder))]
            makes = folder / FINETUNE_RECORD
            commands.append(self._command("finetune-teacher", [*flags, *self.parts.teacher], makes, reads))
        return commands

    def started_from(self, teacher: Path) -> Path | None:
        """The teacher that one of this task's is fine-tuned from; None if that is the encoder."""
        return self.start.teachers_folder / teacher.name if self.start else None

    def teacher(self) -> Path:
        """The teacher: the one that is there, or of those fine-tuned the best on held-out rows; of none, the first.

        Raises:
            DataError: if none is there.
        """
        if self.config.teachers is not None:
            folder = self.config.teachers / self.task.name
            if not folder.is_dir():
                raise DataError(f"--teachers {self.config.teachers}: has no folder {self.task.name!r}")
            return folder
        folders = self._teachers()
        finished = [folder for folder in folders if (folder / FINETUNE_RECORD).is_file()]
        records = {folder: read_run_record(folder / FINETUNE_RECORD) for folder in finished}
        best = {folder: quality(record["result"]["best"]) for folder, record in records.items() if "result" in record}
        return max(best, key=best.__getitem__) if best else folders[0]

    def dump(self, name: str) -> Command:
        """The command that makes a set."""
        teacher, folder = self.teacher(), self.set_folder(name)
        where = ("--store", str(folder.parent), "--name", folder.name)
        flags = [*self._rows("--model-name-or-path", str(teacher), *where), *self.parts.sets[name]]
        reads: list[str | Path] = [self._rows_sha256(), *weights_of(teacher)]
        if self.task.augment is not None:
            reads.append(f"{self.task.augment}: {self.task.num_variants}")
        return self._command("teacher-dump", flags, folder / FILE_NAME, reads)

    def train(self, name: str, seed: int) -> Command:
        """The command that trains a student."""
        folder, logit_set = self.run_folder(name, seed), self.set_folder(self.parts.set_of[name])
        flags = ["--logits", str(logit_set), "--output-dir", str(folder), "--seed", str(seed)]
        settings = self.parts.students[name]
        start = weights_of(Path(settings[settings.index("--init-from") + 1])) if "--init-from" in settings else ()
        reads = [logit_set / FILE_NAME, *start]
        return self._command("train-student", [*flags, *settings], folder / RUN_RECORD, reads)

    def set_folder(self, name: str) -> Path:
        """Where a set lies: the first under the task's name."""
        is_first = name == next(iter(self.parts.sets))
        return self.config.output_dir / "logits" / (self.task.name if is_first else f"{self.task.name}-{as_file(name)}")

    def run_folder(self, name: str, seed: int) -> Path:
        """Where a student lies."""
        return self.config.output_dir / "runs" / self.task.name / f"{as_file(name)}-{seed}"

    def all_commands(self) -> list[Command]:
        """Every command in the order in which they have to run."""
        students = [self.train(name, seed) for name in self.parts.students for seed in self.student_seeds]
        teachers = [command for plan in self.chain for command in plan.finetune()]
        return [*teachers, *map(self.dump, self.parts.sets), *students]

    def _teachers(self) -> list[Path]:
        return [self.teachers_folder / str(seed) for seed in range(FIRST_SEED, FIRST_SEED + self.config.teacher_seeds)]

    def _rows(self, *flags: str) -> list[str]:
        which = ["--manifest", str(self.manifest)] if self.manifest else ["--task", self.task.name]
        return [*which, *(["--data", str(self.config.data)] if self.config.data else []), *flags]

    def _rows_sha256(self) -> str:
        return " ".join(f"{split} {rows_sha256(rows)}" for split, rows in self.source.splits.items())

    def _command(self, name: str, flags: list[str], makes: Path, reads: Sequence[str | Path]) -> Command:
        record = self.records / f"{name}-{makes.parent.name}.json"
        return Command((name, *flags), makes, tuple(reads), record)


def weights_of(folder: Path) -> tuple[Path, ...]:
    """The files with a model's weights; none if the model is not a folder here."""
    return tuple(sorted(path for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern)))
