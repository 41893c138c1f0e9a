"""A training run's folder: the record that other settings are refused by, and the checkpoint it goes on from."""

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
        num_rows: how many rows these were.
        data_state: the position in the data, if ``step`` alone does not decide it.
    """

    step: int = 0
    history: list[Entry] = field(default_factory=list)
    loss_sum: float = 0.0
    num_rows: int = 0
    data_state: Any = None


class Run:
    """A training run in a folder of its own, of one process or several.

    Killed anywhere and repeated, `start`, `resume`, any number of `save` and `finish` end where an undisturbed run
    does, if what is trained between them is a function of the progress.

    Args:
        folder: the folder; `start` creates it.
        settings: everything that decides the result, as JSON values.
        command: the command line, for the record.
        context: other values for the record, such as paths; they may differ from try to try.
        record_name: file name of the record.
        rank: number of this process; the first alone writes, and it must `start` before the others.
        wait: waits until every process has come as far.
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
        """Whether this process is the one that writes."""
        return self.rank == 0

    def start(self) -> RunRecord | None:
        """Begins the run or goes on with it, and removes what a killed process left half written.

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
            console.note(f"{self.folder}: nothing was kept of the run that was begun here with other settings")
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
            IntegrityError: if it is damaged or of another model.
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
        """Writes the checkpoint, in place of the one before.

        Raises:
            FingerprintMismatchError: if another run has begun in the folder, before this one had a checkpoint.
        """
        if self.is_main:
            self._require_own_record()
            save_checkpoint(self.checkpoint, model, optimizer, asdict(progress))

    def _require_own_record(self) -> None:
        # Two commands may start in one folder before either has a checkpoint, and the later record wins.
        changes = setting_changes(self.record()["settings"], self._settings)
        if changes:
            raise FingerprintMismatchError(
                f"{self.folder}: another run has begun here meanwhile, with other settings:\n{changes}\n"
                "It keeps the folder. Repeat this command with another --output-dir."
            )

    def write_metrics(self, history: list[Entry]) -> None:
        """Writes the metrics so far for others to read."""
        if self.is_main and history:
            write_metrics(self.folder, history)

    def record(self) -> RunRecord:
        """The run's record as it is on disk."""
        return read_run_record(self._record)

    def finish(self, result: dict[str, Any]) -> RunRecord:
        """Adds the result to the record, marks it finished and removes the checkpoint.

        Of two of the same command at once the first one's result stays: it has come to the same, and has removed what
        the other one may lack by now.

        Returns:
            The record; empty on other processes than the first.
        """
        if not self.is_main:
            return {}
        record = self.record()
        if record["state"] != "finished":
            record = finish_run(self._record, result)
            console.note(f"{self.folder}: finished")
        self.checkpoint.unlink(missing_ok=True)
        return record
