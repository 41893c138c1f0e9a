"""A run's record on disk with its history, and its metrics in a file and in TensorBoard."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pipeline.config import ReportTo
from pipeline.errors import IntegrityError
from pipeline.files import write_text
from pipeline.record_file import read_record, write_record

RUN_RECORD, SWEEP_RECORD, FINETUNE_RECORD = "run.json", "sweep.json", "finetune.json"
# What transformers calls the files of a model.
CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE = "config.json", "model.safetensors", "tokenizer.json"
# A run records the names of the columns, so that `predict --file` and `evaluate --data` need no manifest.
TEXT_COLUMNS, LABEL_COLUMNS = "text_columns", "label_columns"
# A run of several tasks lists the folders of its students here. Other runs lack this key.
STUDENTS = "students"
RunRecord = dict[str, Any]
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


def _record_if_there(run: Path) -> RunRecord:
    """The record of a run, or an empty one if the file does not exist."""
    return read_run_record(run / RUN_RECORD) if (run / RUN_RECORD).is_file() else {}


def finish_run(path: Path, result: dict[str, Any]) -> RunRecord:
    """Adds the result to a run's record and marks it finished."""
    # The record is read again, because a second process may have changed it since the start.
    record = read_run_record(path) | {"state": "finished", "result": result}
    write_run_record(path, record)
    return record


def deciding(metrics: Metrics) -> tuple[str, str, float] | None:
    """Returns split, name and value of the metric that selects the best epoch, the first of the first scored split."""
    return next(((split, name, value) for split, one in metrics.items() for name, value in one.items()), None)


def quality(entry: Entry) -> float:
    """Returns the number by which entries are compared: the `deciding` metric, or without metrics the time."""
    # Without dev rows there is nothing to compare, so the latest entry counts as the best.
    number = entry["epoch"] if "epoch" in entry else entry["step"]
    found = deciding(entry["metrics"])
    return float(found[2] if found else number)


def best_of(history: Sequence[Entry]) -> Entry:
    """Returns the best entry of a history that has one. Of equally good entries, returns the first."""
    return max(history, key=quality)


def last_is_best(history: Sequence[Entry]) -> bool:
    """Whether the last entry is better than all before it."""
    # `is` matters: an equally good later entry is equal in quality but must not replace the first.
    return bool(history) and best_of(history) is history[-1]


def read_run_record(path: Path) -> RunRecord:
    """Reads a record.

    Raises:
        IntegrityError: if it is missing or damaged.
    """
    try:
        record = read_record(path)
    except FileNotFoundError as error:
        problem = f"not a run: it has no {path.name}" if path.parent.exists() else "no such folder"
        raise IntegrityError(f"{path.parent}: {problem}") from error
    if not {"state", "settings", "command"} <= record.keys():
        raise IntegrityError(f"{path}: not the record of a run")
    return record


def write_run_record(path: Path, record: RunRecord) -> None:
    """Writes a run's record atomically."""
    write_record(path, record)


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
