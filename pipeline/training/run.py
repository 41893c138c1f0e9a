"""A training run's folder: the record, by which other settings are refused, and the checkpoint for resuming."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline import console
from pipeline.errors import FingerprintMismatchError, setting_changes
from pipeline.files import make_folder, remove_temporaries
from pipeline.training.checkpoint import load_checkpoint, save_checkpoint, unusable
from pipeline.training.run_record import (
    RUN_RECORD,
    Entry,
    RunRecord,
    finish_run,
    read_run_record,
    write_metrics,
    write_run_record,
)

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
        self._record, self._command = folder / record_name, command
        self._settings, self._context = settings, context or {}

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def start(self) -> RunRecord | None:
        """Starts or resumes the run, and removes incomplete files of killed processes.

        Returns:
            The record if the run is finished (empty on other processes than the first), else None.

        Raises:
            DataError: if the folder cannot be written to.
            FingerprintMismatchError: if it holds a run with other settings, naming each that differs.
        """
        # Other processes only read the record, because two writers could overwrite each other's state.
        if not self.is_main:
            return {} if self.record()["state"] == "finished" else None
        make_folder(self.folder)
        fresh = {"state": "running", "command": self._command, "settings": self._settings} | self._context
        stored = self.record() if self._record.exists() else fresh
        # A run without a checkpoint holds no work, so other settings may replace it without an error.
        is_lost = stored["state"] == "running" and not self.checkpoint.exists()
        if is_lost and setting_changes(stored["settings"], self._settings):
            console.note(
                f"{self.folder}: a run with other settings was started here, but saved nothing. Starting again"
            )
        # Context such as paths may change between tries, for example after the folder was moved.
        record = fresh if is_lost else stored | self._context
        changes = setting_changes(record["settings"], self._settings)
        if changes:
            raise FingerprintMismatchError(
                f"{self.folder} holds a run with other settings:\n{changes}\n"
                "Choose another --output-dir, or remove the folder if the old run is not needed"
            )
        # Half-written files are removed only after the settings match, since they may belong to another run.
        remove_temporaries(self.folder)
        if record != stored or not self._record.exists():
            write_run_record(self._record, record)
        if record["state"] == "running":
            return None
        # A run that was killed inside `finish` leaves its checkpoint, which is several times as large as the student.
        self.checkpoint.unlink(missing_ok=True)
        console.note(f"{self.folder}: already finished. Nothing is trained")
        return record

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
            self._require_own_record()
            save_checkpoint(self.checkpoint, model, optimizer, asdict(progress))

    def _require_own_record(self) -> None:
        # Two commands may start in one folder before either has a checkpoint, and the later record wins.
        changes = setting_changes(self.record()["settings"], self._settings)
        if changes:
            raise FingerprintMismatchError(
                f"{self.folder}: another run with other settings has started here meanwhile:\n{changes}\nIt "
                "keeps the folder. Repeat this command with another --output-dir."
            )

    def write_metrics(self, history: list[Entry]) -> None:
        """Writes the metrics so far for readers."""
        if self.is_main and history:
            write_metrics(self.folder, history)

    def record(self) -> RunRecord:
        """Returns the run's record on disk."""
        return read_run_record(self._record)

    def finish(self, result: dict[str, Any]) -> RunRecord:
        """Adds the result to the record, marks it finished and removes the checkpoint.

        If the same command runs twice at once, the first result stays: both are equal, and the first process has
        removed files that the second would need.

        Returns: The record. Empty on other processes than the first.
        """
        if not self.is_main:
            return {}
        record = self.record()
        if record["state"] != "finished":
            record = finish_run(self._record, result)
            console.note(f"{self.folder}: finished")
        self.checkpoint.unlink(missing_ok=True)
        return record
