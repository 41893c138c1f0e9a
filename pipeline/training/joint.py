"""One training of several tasks on one encoder: its batches, settings and scores, and the part of each task."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipeline.errors import FingerprintMismatchError
from pipeline.file_names import WEIGHTS_FILE
from pipeline.record_file import read_work_record
from pipeline.resumable import Workspace, require_same_settings
from pipeline.training.batches import EpochBatches, MixedBatches, TaskBatch
from pipeline.training.best_epoch import deciding
from pipeline.training.loop import TrainTask
from pipeline.training.run_record import Entry, Metrics


class BatchedTask(TrainTask[list[int]]):
    """A task with its rows in memory and new batches in every epoch, so that it can be one of several."""

    batches: EpochBatches


class JointTask(TrainTask[TaskBatch]):
    """Several tasks as one. A step uses a batch of one task and changes of the others only what they share with it.

    Args:
        model: the model of all tasks.
        tasks: the tasks by name.
        seed: the seed of the order of their batches.
        save: writes the weights of all tasks to the run's folder.
    """

    def __init__(
        self, model: nn.Module, tasks: Mapping[str, BatchedTask], seed: int, save: Callable[[Path], None]
    ) -> None:
        self.model, self._tasks, self._save = model, dict(tasks), save
        self._by_number = list(tasks.values())
        self.batches = MixedBatches([task.batches for task in self._by_number], seed)

    def loss(self, batch: TaskBatch) -> Tensor:
        return self._by_number[batch.task].loss(batch.rows)

    def evaluate(self) -> Metrics:
        return joint_scores({name: task.evaluate() for name, task in self._tasks.items()})

    def save(self, folder: Path) -> None:
        self._save(folder)


def joint_settings(by_task: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the settings of several tasks as those of one run: the common ones, and the others as TASK.SETTING."""
    first = next(iter(by_task.values()))
    others = list(by_task.values())[1:]
    # Settings are compared per task on resuming, so those that differ must keep the task in their name.
    common = {key: value for key, value in first.items() if all((key, value) in one.items() for one in others)}
    return common | {
        f"{task}.{key}": value for task, one in by_task.items() for key, value in one.items() if key not in common
    }


def joint_scores(by_task: Mapping[str, Metrics]) -> Metrics:
    """Returns the metrics of several tasks by TASK/SPLIT, after the mean of their deciding metrics."""
    # All tasks have equal weight here: a mean over rows would mostly follow the largest task.
    known = [found[2] for one in by_task.values() if (found := deciding(one))]
    # The first metric of the first split decides which epoch is saved, so the mean comes before all others.
    mean: Metrics = {"tasks": {"mean": sum(known) / len(known)}} if known else {}
    return mean | {f"{task}/{split}": metrics for task, one in by_task.items() for split, metrics in one.items()}


def entry_of(task: str, entry: Entry) -> Entry:
    """Returns one task's part of an entry of the history."""
    prefix = f"{task}/"
    metrics = {split.removeprefix(prefix): m for split, m in entry["metrics"].items() if split.startswith(prefix)}
    return entry | {"metrics": metrics}


def start_parts(
    parts: Mapping[Path, dict[str, Any]], command: str, record_name: str, contexts: Sequence[dict[str, Any]] = ()
) -> list[Workspace]:
    """Starts the record in each task's folder, because commands such as ``evaluate`` take such a folder.

    Args:
        parts: the settings of each task by its folder.
        command: the command line, for the records.
        record_name: the file name of the records.
        contexts: further content of each record.

    Raises:
        FingerprintMismatchError: if a folder belongs to other work.
    """
    # All folders are checked before the first is written, so that an error leaves nothing behind.
    for folder, settings in parts.items():
        check_free(folder / record_name, settings, folder / WEIGHTS_FILE)
    works = [
        Workspace(folder, settings, command, record_name=record_name, context=context)
        for (folder, settings), context in zip(parts.items(), contexts or [{}] * len(parts), strict=True)
    ]
    for work in works:
        work.start()
    return works


def check_free(path: Path, settings: Mapping[str, Any], other: Path) -> None:
    """Raises FingerprintMismatchError if a folder belongs to other work.

    Args:
        path: the record in it, if there is one.
        settings: the settings of this work.
        other: a file that would be mistaken for the model of this work, if it has no record.
    """
    if path.exists():
        advice = "Choose another --output-dir"
        require_same_settings(f"{path.parent} holds a run", read_work_record(path)["settings"], settings, advice)
    # A file without a record was not written by this command, so overwriting it could destroy other work.
    elif other.exists():
        raise FingerprintMismatchError(f"{path.parent} holds {other}\nChoose another --output-dir")
