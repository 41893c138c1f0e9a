"""Rows that a teacher is questioned about before the real work."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.sets.record import FILE_NAME, read_set_record
from pipeline.sources import Source
from pipeline.tasks.task import Task
from teacher.models.classifier import Teacher

ROWS = 256


def is_begun(root: Path, teacher: Teacher) -> bool:
    """Whether the set was begun with this teacher, who was questioned then."""
    if not (root / FILE_NAME).exists():
        return False
    begun = read_set_record(root).teacher
    return (begun.weights_sha256, begun.labels) == (teacher.weights_sha256, teacher.labels)


def probe_rows(task: Task, source: Source) -> tuple[str, pa.Table]:
    """The first dev split, or of a source without one its first, and rows of the task's own evenly spread over it."""
    split = next((name for name in task.dev_splits if name in source.splits), next(iter(source.splits)))
    rows = source.own(split)
    places = np.unique(np.linspace(0, rows.num_rows - 1, min(ROWS, rows.num_rows)).astype(np.int64))
    return split, rows.take(pa.array(places))
