"""A training run's folder: the record, by which other settings are refused, and the checkpoint for resuming."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline import console
from pipeline.file_names import RUN_RECORD
from pipeline.record_file import Record
from pipeline.resumable import FINISHED, Workspace
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint, unusable
from pipeline.training.run_record import Entry, write_metrics

CHECKPOINT = "checkpoint.safetensors"


@dataclass
class Progress:
    """The progress of a run, as a checkpoint stores it.

    Attributes:
        step: steps taken.
        history: an entry per evaluation.
        loss_sum: sum of the losses of the rows since the last entry.
        num_rows: the number of these rows.
        data_state: the position in the data, if ``step`` alone does not determine it.
    """

    step: int = 0
    history: list[Entry] = field(default_factory=list)
    loss_sum: float = 0.0
    num_rows: int = 0
    data_state: Any = None


class Run:
    """A training run in its own folder, with one or several processes.

    After a kill at any point, a repeated `start`, `resume`, any number of `save`, and `finish` give the result of an
    undisturbed run, if the training between them only depends on the progress.

    Args:
        folder: the folder, which `start` creates.
        settings: everything that determines the result, as JSON values.
        command: the command line, for the record.
        context: other values for the record, such as paths. They may differ between tries.
        record_name: file name of the record.
        rank: number of this process. Only the first one writes, and it must `start` before the others.
        wait: waits until every process has reached the same point.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        command: str,
        context: dict[str, Any] | None = None,
        record_name: str = RUN_RECORD,
        rank: int = 0,
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        self.folder, self.rank, self._wait = folder, rank, wait
        self.checkpoint = folder / CHECKPOINT
        # A run without a checkpoint has no progress, so other settings may replace it without an error.
        self._work = Workspace(
            folder,
            settings,
            command,
            title="a run",
            advice="Choose another --output-dir, or remove the folder if the old run is not needed",
            record_name=record_name,
            context=context,
            progress=CHECKPOINT,
        )

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def start(self) -> Record | None:
        """Starts or resumes the run, and removes incomplete files of killed processes. See `Workspace.start`.

        Returns:
            The record if the run is finished (empty on other processes than the first), else None.
        """
        # Other processes only read the record, because two writers could overwrite each other's state.
        if not self.is_main:
            return {} if self.record()["state"] == FINISHED else None
        if self._work.start() != "finished":
            return None
        # A run that was killed inside `finish` leaves its checkpoint, which is several times as large as the student.
        self.checkpoint.unlink(missing_ok=True)
        console.note(f"{self.folder}: already finished. Nothing is trained")
        return self.record()

    def resume(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Restores model and optimizer from the checkpoint, if there is one.

        Raises:
            IntegrityError: if it is damaged or belongs to another model.
        """
        saved = load_checkpoint(self.checkpoint, model, optimizer)
        # All processes must have read the checkpoint before a fast first process can finish and remove it.
        self._wait()
        try:
            # A checkpoint of another version may have other fields, which raises TypeError here.
            return Progress(**saved or {})
        except TypeError as error:
            raise unusable(self.checkpoint, error) from error

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Writes the checkpoint, which replaces the previous one.

        Raises:
            FingerprintMismatchError: if another run has started in the folder before this one had a checkpoint.
        """
        if self.is_main:
            # Two commands may start in one folder before either has a checkpoint, and the later record wins.
            self._work.require_own()
            save_checkpoint(self.checkpoint, model, optimizer, asdict(progress))

    def write_metrics(self, history: list[Entry]) -> None:
        """Writes the metrics so far for readers."""
        if self.is_main and history:
            write_metrics(self.folder, history)

    def record(self) -> Record:
        """Returns the run's record on disk."""
        return self._work.record()

    def finish(self, result: dict[str, Any]) -> Record:
        """Adds the result to the record, marks it finished and removes the checkpoint. See `Workspace.finish`.

        Returns: The record. Empty on other processes than the first.
        """
        if not self.is_main:
            return {}
        record = self._work.finish(result)
        console.note(f"{self.folder}: finished")
        self.checkpoint.unlink(missing_ok=True)
        return record
