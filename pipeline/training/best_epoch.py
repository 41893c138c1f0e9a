"""The rule for the best epoch: the highest first metric of the first dev split. Of equal epochs, the first wins.

A test split never selects an epoch, because its score would then be optimistic.
"""

from collections.abc import Sequence

from pipeline.tasks.task import TRAIN
from pipeline.training.run_record import Entry, Metrics

# The share of the training rows that selects the best epoch where only a test split has gold.
USUAL_SHARE = 0.1


def may_select(split: str) -> bool:
    """Whether a split, or a split of a task (TASK/SPLIT), is a dev split that may select the best epoch."""
    return split != TRAIN and not split.rpartition("/")[2].startswith("test")


def deciding(metrics: Metrics) -> tuple[str, str, float] | None:
    """Returns split, name and value of the metric that selects the best epoch, the first of the first scored split."""
    found = ((split, *score) for split, one in metrics.items() if may_select(split) for score in one.items())
    return next(found, None)


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
