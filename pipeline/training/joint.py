"""One training of several tasks on one encoder: its batches, settings and scores, and the part of each task."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipeline.errors import FingerprintMismatchError, setting_changes
from pipeline.training.batches import EpochBatches, MixedBatches, TaskBatch
from pipeline.training.loop import TrainTask
from pipeline.training.run_record import Entry, Metrics, deciding, read_run_record


class BatchedTask(TrainTask[list[int]]):
    """A task whose batches are rows in memory, anew in every epoch, so that it can be one of several."""

    batches: EpochBatches


class JointTask(TrainTask[TaskBatch]):
    """Several tasks as one: a step is a batch of one of them, and leaves the heads of the others alone.

    Args:
        model: of all tasks.
        tasks: by name.
        seed: of the order in which they take turns.
        save: writes the weights of all tasks to the run's folder.
    """

    def __init__(
        self, model: nn.Module, tasks: Mapping[str, BatchedTask], seed: int, save: Callable[[Path], None]
    ) -> None:
        self.model, self._tasks, self._save = model, dict(tasks), save
        self._by_number = list(tasks.values())
        self.batches = MixedBatches([task.batches for task in self._by_number], seed)

    def loss(self, batch: TaskBatch) -> Tensor:
        """The mean loss of a batch of one task."""
        return self._by_number[batch.task].loss(batch.rows)

    def evaluate(self) -> Metrics:
        """The metrics of all tasks, see `joint_scores`."""
        return joint_scores({name: task.evaluate() for name, task in self._tasks.items()})

    def save(self, folder: Path) -> None:
        """Writes the weights of all tasks."""
        self._save(folder)


def joint_settings(by_task: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings of several tasks as those of one run: what they have in common, the rest by TASK.SETTING."""
    first = next(iter(by_task.values()))
    others = list(by_task.values())[1:]
    # Settings are compared per task on resuming, so those that differ must keep the task in their name.
    common = {key: value for key, value in first.items() if all((key, value) in one.items() for one in others)}
    return common | {
        f"{task}.{key}": value for task, one in by_task.items() for key, value in one.items() if key not in common
    }


def joint_scores(by_task: Mapping[str, Metrics]) -> Metrics:
    """Metrics of several tasks, by TASK/SPLIT; before them, as what decides, the mean of what would decide of each."""
    # Tasks of other sizes count the same here: a mean over rows would follow the largest task alone.
    known = [found[2] for one in by_task.values() if (found := deciding(one))]
    # The first metric of the first split decides which epoch is saved, so the mean comes before all others.
    mean: Metrics = {"tasks": {"mean": sum(known) / len(known)}} if known else {}
    return mean | {f"{task}/{split}": metrics for task, one in by_task.items() for split, metrics in one.items()}


def entry_of(task: str, entry: Entry) -> Entry:
    """The part of an entry of the history that one of the tasks has."""
    prefix = f"{task}/"
    metrics = {split.removeprefix(prefix): m for split, m in entry["metrics"].items() if split.startswith(prefix)}
    return entry | {"metrics": metrics}


def check_free(path: Path, settings: Mapping[str, Any], *others: Path) -> None:
    """Raises FingerprintMismatchError if a task's folder is that of something else.

    Args:
        path: the record in it, if there is one.
        settings: those of the task in this training.
        others: files that would be taken for what it is to hold.
    """
    changes = setting_changes(read_run_record(path)["settings"], settings) if path.exists() else ""
    # A file without a record was not written by this command, so overwriting it could destroy other work.
    taken = [str(other) for other in others if other.exists()]
    if changes or taken:
        what = f"holds another run:\n{changes}" if changes else f"holds {taken[0]}"
        raise FingerprintMismatchError(f"{path.parent} {what}\nChoose another --output-dir")
