"""A set of examples as rows of a table."""

from typing import Any

from pipeline.sets.record import SetRecord

SPLIT_COLUMNS = ("split", "rows", "files", "teacher against gold")


def split_rows(record: SetRecord) -> list[list[Any]]:
    """A row of `SPLIT_COLUMNS` for each split."""
    return [
        [
            split,
            record.rows_of(split),
            len(record.shards_of(split)),
            ", ".join(f"{name} {value:.4f}" for name, value in record.scores.get(split, {}).items()),
        ]
        for split in record.splits
    ]
