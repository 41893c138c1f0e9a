"""One training of several tasks: its settings and scores, and what they are of each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import FingerprintMismatchError, setting_changes
from pipeline.training.run_record import Entry, Metrics, deciding, read_run_record


def joint_settings(by_task: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The settings of several tasks as those of one run: what they have in common, the rest by TASK.SETTING."""
    first = next(iter(by_task.values()))
    others = list(by_task.values())[1:]
    common = {key: value for key, value in first.items() if all((key, value) in one.items() for one in others)}
    return common | {
        f"{task}.{key}": value for task, one in by_task.items() for key, value in one.items() if key not in common
    }


def joint_scores(by_task: Mapping[str, Metrics]) -> Metrics:
    """Metrics of several tasks, by TASK/SPLIT; before them, as what decides, the mean of what would decide of each."""
    known = [found[2] for one in by_task.values() if (found := deciding(one))]
    mean: Metrics = {"tasks": {"mean": sum(known) / len(known)}} if known else {}
    return mean | {f"{task}/{split}": metrics for task, one in by_task.items() for split, metrics in one.items()}


def entry_of(task: str, entry: Entry) -> Entry:
    """What an entry of the history says of one of the tasks."""
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
    taken = [str(other) for other in others if other.exists()]
    if changes or taken:
        what = f"holds another run:\n{changes}" if changes else f"holds {taken[0]}"
        raise FingerprintMismatchError(f"{path.parent} {what}\nChoose another --output-dir")
