"""Real GLUE rows, where the caller's DISTILL_DATA has them."""

from pathlib import Path

import pytest

from pipeline.sources import load_source
from pipeline.tasks.task import load_task, task_names


@pytest.mark.glue
@pytest.mark.parametrize("name", task_names())
def test_rows_are_read_whole_or_the_record_says_what_is_missing(name: str, real_data: Path) -> None:
    task = load_task(name)
    source = load_source(task, real_data)
    partial = {split for split, rows in source.splits.items() if rows.num_rows != task.splits[split]}
    missing = set(task.splits) - set(source.splits)
    named = {split for split in task.splits if any(f"split {split!r}" in warning for warning in source.warnings)}
    assert named == partial | missing
    for rows in source.splits.values():
        gold = rows.column("label" if task.type == "classification" else "score")
        assert gold.null_count == 0
        assert len(gold.unique()) >= max(2, len(task.labels))
