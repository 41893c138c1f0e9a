"""The parts of a run's record that other commands read, thresholds, and metrics in a file and in TensorBoard."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import IntegrityError, short
from pipeline.file_names import RUN_RECORD, SWEEP_RECORD
from pipeline.files import write_text
from pipeline.record_file import Record, read_record, read_work_record, with_checksum
from pipeline.shared_settings import ReportTo

# A run records the names of the columns, so that `predict --file` and `evaluate --data` need no manifest.
TEXT_COLUMNS, LABEL_COLUMNS = "text_columns", "label_columns"
# A run of several tasks lists the folders of its students here. Other runs lack this key.
STUDENTS = "students"
# A student that is saved without its run's record would lose its thresholds, so they get a file.
THRESHOLDS_FILE = "thresholds.json"
Entry = dict[str, Any]  # entry of a run's history: `epoch` or `step`, `loss`, `metrics` by split
Metrics = dict[str, dict[str, float]]  # split -> metric -> value


def kind_of_folder(folder: Path) -> Literal["run", "sweep"] | None:
    """Returns the type of a folder by its record: a run or a sweep, or None."""
    if (folder / SWEEP_RECORD).is_file():
        return "sweep"
    return "run" if (folder / RUN_RECORD).is_file() else None


def text_columns(run: Path) -> list[tuple[str, ...]] | None:
    """Returns the accepted column names of each text of a run, or None if it recorded none."""
    columns = _record_if_there(run).get(TEXT_COLUMNS)
    return None if columns is None else list(map(tuple, columns))


def label_columns(run: Path) -> tuple[str, ...]:
    """The names that the column of gold may have in files of a run's task, empty if it recorded none."""
    return tuple(_record_if_there(run).get(LABEL_COLUMNS, ()))


def _record_if_there(run: Path) -> Record:
    return read_work_record(run / RUN_RECORD) if (run / RUN_RECORD).is_file() else {}


def stored_thresholds(folder: Path) -> dict[str, float]:
    """The thresholds of a student by label: of its run's record, or of the file beside it, empty if there are none.

    Raises:
        IntegrityError: if what holds them is damaged.
    """
    path, stored = folder / RUN_RECORD, {}
    if path.exists():
        stored = read_work_record(path).get("result", {}).get("thresholds", {})
    if not stored and (folder / THRESHOLDS_FILE).exists():
        path = folder / THRESHOLDS_FILE
        stored = read_record(path)
    # A student from elsewhere may store anything here, and 0 or 1 would become an infinite logit.
    if not isinstance(stored, dict) or not all(isinstance(p, float) and 0 < p < 1 for p in stored.values()):
        raise IntegrityError(f"{path}: thresholds: {short(stored)} are not probabilities by label")
    return stored


def thresholds_file(folder: Path) -> dict[str, bytes]:
    """The file that goes with a student when it is saved elsewhere, by its name, or none if it has no thresholds."""
    stored = stored_thresholds(folder)
    return {THRESHOLDS_FILE: with_checksum(json.dumps(stored, indent=2)).encode()} if stored else {}


METRICS_FILE = "metrics.jsonl"
# TensorBoard reads whole folders, so its files are in a separate folder.
TENSORBOARD_FOLDER = "tensorboard"
COUNTS = ("epoch", "step")


def flat(entry: Entry) -> dict[str, float]:
    """Returns a flat entry of a history: ``epoch`` or ``step``, ``loss``, and a number for each ``SPLIT/METRIC``."""
    numbers = {name: value for name, value in entry.items() if name != "metrics"}
    scores = {f"{split}/{name}": v for split, metrics in entry["metrics"].items() for name, v in metrics.items()}
    return numbers | scores


def write_metrics(folder: Path, history: Sequence[Entry]) -> None:
    """Writes a line of JSON for each entry of a history."""
    write_text(folder / METRICS_FILE, "".join(json.dumps(flat(entry)) + "\n" for entry in history))


@contextmanager
def tracker(report_to: ReportTo, folder: Path) -> Iterator[Callable[[Entry], None]]:
    """Yields a function that sends an entry of the history to a tracker."""
    if report_to == "none":
        yield lambda entry: None
        return
    # TensorBoard takes seconds to import, and only runs that use it should wait.
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / TENSORBOARD_FOLDER)) as writer:

        def track(entry: Entry) -> None:
            step = next(entry[name] for name in COUNTS if name in entry)
            for name, value in flat(entry).items():
                if name not in COUNTS:
                    writer.add_scalar(name, value, step)
            # Entries are minutes apart, and TensorBoard would otherwise keep them in memory until its buffer is full.
            writer.flush()

        yield track
