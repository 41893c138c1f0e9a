"""Rows in the formats of Hugging Face `datasets`: from the hub, and in folders that `save_to_disk` writes.

Such a folder has ``state.json``, which lists its files in the order of their rows. Its other JSON files contain no
rows.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import DataError, MissingDependencyError, unless_passing
from pipeline.sources.columns import check_names, class_names, named
from pipeline.sources.row_bytes import ending
from pipeline.tasks.task import Hub, Task
from pipeline.untrusted import parse_json

STATE = "state.json"
RECORDS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")
MAX_STATE_BYTES = 2**24


def read_hub(task: Task, splits: tuple[str, ...]) -> tuple[str, dict[str, tuple[str, pa.Table]]]:
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


def is_rows(path: Path, endings: Iterable[str]) -> bool:
    """Whether a path is a file of rows by its name."""
    if not path.is_file() or ending(path) not in endings or path.name.startswith("."):
        return False
    return path.name not in RECORDS and not (path.name == STATE and is_saved(path.parent))


def row_files(folder: Path, endings: Iterable[str]) -> list[Path]:
    """Returns the files of rows in a folder, in the order of a saved folder's list, otherwise of their names."""
    if is_saved(folder):
        return saved_files(folder)
    return sorted(path for path in folder.iterdir() if is_rows(path, endings))


def is_saved(folder: Path) -> bool:
    """Whether a folder is one split that `save_to_disk` wrote."""
    return (folder / STATE).is_file() and (folder / RECORDS[0]).is_file()


def saved_files(folder: Path) -> list[Path]:
    """Returns the files of a saved folder, in the order of their rows.

    Raises:
        DataError: if its state cannot be read, a file is missing, or its rows are a selection in a separate file.
    """
    state = _state(folder)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(
            f"{folder}: an old version of datasets saved it, with a selection of its rows in a separate file. "
            "Save it again with flatten_indices() and save_to_disk."
        )
    listed = state.get("_data_files")
    entries = listed if isinstance(listed, list) else [None]
    names = [one.get("filename") if isinstance(one, dict) else None for one in entries]
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise DataError(f"{folder / STATE}: lists no files of rows in this folder. Save the data set again.")
    paths = [folder / str(name) for name in names]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: no such file, but {STATE} lists it. Copy the whole folder")
    return paths


def saved_split(folder: Path) -> str | None:
    """Returns the name of the split in a saved folder, if its state has one."""
    split = _state(folder).get("_split")
    return split if isinstance(split, str) else None


def _state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    with path.open("rb") as stream:
        data = stream.read(MAX_STATE_BYTES + 1)
    try:
        state = parse_json(data) if len(data) <= MAX_STATE_BYTES else None
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}. Save the data set again.") from error
    if not isinstance(state, dict):
        raise DataError(f"{path}: not the state of a data set. Save the data set again.")
    return state
