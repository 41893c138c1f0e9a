"""Rows of tasks and corpora from the Hugging Face hub, through `datasets`."""

from typing import Any

import pyarrow as pa

from pipeline.errors import DataError, MissingDependencyError, unless_passing
from pipeline.sources.class_names import check_names, class_names, named
from pipeline.tasks.task import Hub, Task


def read(task: Task, splits: tuple[str, ...]) -> tuple[str, dict[str, tuple[str, pa.Table]]]:
    """Reads splits of a task from its hub data set.

    Returns:
        A description for the record and, per split, its place and its rows in the data set's order.

    Raises:
        DataError: if the task has no hub data set, the hub cannot be reached, or the names of classes do not fit the
            task.
        MissingDependencyError: if `datasets` is not installed.
    """
    if task.hub is None:
        raise DataError(f"task {task.name!r} has no hub data set. Give its rows with --data PATH or DISTILL_DATA")
    tables = {}
    for split in splits:
        rows = load_rows(task.hub, split)
        names, address = class_names(rows.features.arrow_schema.metadata), f"{place(task.hub)}:{split}"
        check_names(task, address, names)
        tables[split] = (address, named(rows.data.table, names, address))
    return description(task.hub), tables


def description(hub: Hub) -> str:
    """Returns the origin of rows from a hub data set, for records."""
    return f"{place(hub)}@{hub.revision}" if hub.revision else place(hub)


def place(hub: Hub) -> str:
    """The address of a hub data set."""
    return "/".join(part for part in (hub.id, hub.config) if part)


def load_rows(hub: Hub, split: str) -> Any:
    """A split of a hub data set, as `datasets` memory-maps it.

    Raises:
        DataError: if the hub cannot be reached, or has no such data set or split.
        MissingDependencyError: if `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "reading from the hub needs `datasets`: pip install 'distill-offline[teacher]', or give --data PATH"
        ) from error
    try:
        return datasets.load_dataset(hub.id, hub.config, split=split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise unless_passing(DataError, error)(
            f"{place(hub)}, split {split!r}: cannot be read from the hub: {reason}. "
            "Offline, give local files with --data PATH or DISTILL_DATA"
        ) from error
