"""The rule for the best epoch: the highest first metric of the first dev split. Of equal epochs, the first wins.

A test split never selects an epoch, because its score would then be optimistic.
"""

from collections.abc import Sequence

from pipeline import console
from pipeline.tasks.task import TRAIN
from pipeline.training.run_record import Entry, Metrics

# The share of the training rows that selects the best epoch where only a test split has gold.
USUAL_SHARE = 0.1


def may_select(split: str) -> bool:
    """Whether a split, or a split of a task (TASK/SPLIT), is a dev split that may select the best epoch."""
    return split != TRAIN and not split.rpartition("/")[2].startswith("test")


def share_to_select(place: str, scored: Sequence[str], num_rows: int) -> float | None:
    """Returns the share of the training rows that selects the best epoch unless the user names one.

    A teacher and its students hold out the same rows.

    Args:
        place: what the note begins with.
        scored: the splits besides training that have gold.
        num_rows: the training rows.

    Returns:
        `USUAL_SHARE`, with a note, if only test splits have gold and there are enough rows. Otherwise None.
    """
    if not scored or any(map(may_select, scored)) or not round(USUAL_SHARE * num_rows):
        return None
    console.note(
        f"{place}only {', '.join(scored)} has gold, and a test split does not select the best epoch. {USUAL_SHARE:.0%} "
        "of the training rows are held out for it. --held-out sets their share"
    )
    return USUAL_SHARE


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
