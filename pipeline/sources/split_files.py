"""Finds the files of a task's splits in the common layouts: single files, parts, folders, GLUE's, the hub's."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.errors import DataError
from pipeline.sources.hugging_face_rows import is_saved, row_files, saved_files, saved_split
from pipeline.sources.line_rows import has_labels
from pipeline.sources.row_bytes import ending, stem
from pipeline.sources.row_files import FORMATS
from pipeline.tasks.task import Task

# extensions of files with columns, which rows of a task need
EXTENSIONS = tuple(kind for kind in FORMATS if kind != ".txt")
GLUE_FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B"}
SYNONYMS = {  # other names of splits: GLUE's own, and those of scikit-learn's and of Kaggle's users
    "validation": ("dev", "valid", "val"),
    "validation_matched": ("dev_matched",),
    "validation_mismatched": ("dev_mismatched",),
}
# names of parts, as written by `datasets` and the hub
PART = re.compile(r"(?P<split>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")


def find_files(task: Task, data: Path, splits: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the files of each split, in the order of their rows.

    They are in ``data``, in its subfolder with the name of the task, or in a subfolder ``data`` of these. A split is a
    file ``train.csv``, a text ``train.txt`` with fastText's labels, parts such as ``train-00000-of-00002.parquet``, or
    a folder ``train`` of files, which `save_to_disk` of `datasets` may have written. If ``data`` is a single file or
    such a folder, it is the only requested split, or ``train``.

    Raises:
        DataError: if the path does not exist, a part is missing, a split has several files, or a file could be any of
            several splits.
    """
    if data.is_file():
        return {_only_split(data, splits): [data]}
    if is_saved(data):
        split = saved_split(data)
        return {split if split is not None and split in splits else _only_split(data, splits): saved_files(data)}
    if not data.is_dir():
        raise DataError(f"--data {data}: no such file or folder")
    for folder in _folders(task, data):
        found = {split: paths for split in splits if (paths := _split_files(folder, split))}
        if found:
            return found
    return {}


def _only_split(data: Path, splits: Sequence[str]) -> str:
    """Returns the split of a file or a folder without splits."""
    if len(splits) > 1 and "train" not in splits:
        raise DataError(f"--data {data}: its split is unclear. Name one with --splits: {', '.join(splits)}")
    return splits[0] if len(splits) == 1 else "train"


def passed_over(task: Task, used: Mapping[str, Sequence[Path]]) -> list[Path]:
    """Returns the files of rows in the same folders that belong to no split of the task."""
    taken = {path for paths in used.values() for path in paths}
    folders = {path.parent for path in taken}
    known = {path for folder in folders for split in task.splits for path in _split_files_or_none(folder, split)}
    return sorted({path for folder in folders for path in _row_files(folder)} - taken - known)


def expected_names(split: str) -> str:
    """Returns the accepted names of a split's files, in words."""
    return f"{', '.join(split + kind for kind in EXTENSIONS)} or {split}-00000-of-00002{EXTENSIONS[0]}"


def _folders(task: Task, data: Path) -> list[Path]:
    names = (task.name, GLUE_FOLDERS.get(task.name, task.name.upper()))
    own = next((data / name for name in names if (data / name).is_dir()), data)
    return [folder for folder in (own, own / "data", *_configurations(own)) if folder.is_dir()]


def _configurations(folder: Path) -> list[Path]:
    """Returns the only folder in a folder without files, which is a configuration in the hub's layout."""
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return inside if len(inside) == 1 and inside[0].is_dir() else []


def _row_files(folder: Path) -> list[Path]:
    return [path for path in row_files(folder, FORMATS) if ending(path) in EXTENSIONS or has_labels(path)]


def _split_files(folder: Path, split: str) -> list[Path]:
    ways: list[list[Path]] = []
    for name in (split, f"{split}_partial", *SYNONYMS.get(split, ())):
        ways += [[path] for path in _row_files(folder) if stem(path) == name]
        ways += filter(None, (_parts(folder, name), _inside(folder / name)))
    if len(ways) > 1:
        both = ", ".join(str(way[0].relative_to(folder)) for way in ways)
        raise DataError(f"{folder}: split {split!r} exists more than once: {both}. Keep one.")
    return ways[0] if ways else []


def _split_files_or_none(folder: Path, split: str) -> list[Path]:
    try:
        return _split_files(folder, split)
    except DataError:
        return []


def _parts(folder: Path, split: str) -> list[Path]:
    """Returns the parts of a split by their numbers.

    Raises:
        DataError: if one of them is missing, or the parts have different totals.
    """
    matches = [(path, PART.fullmatch(stem(path))) for path in _row_files(folder)]
    parts = [(path, match) for path, match in matches if match is not None and match["split"] == split]
    counts = {int(match["count"]) for _, match in parts}
    if len(counts) > 1:
        raise DataError(
            f"{folder}: the parts of split {split!r} have different totals: {sorted(counts)}. Keep the parts with "
            "one total."
        )
    missing = sorted(set(range(*counts)) - {int(match["number"]) for _, match in parts}) if counts else []
    if missing:
        raise DataError(f"{folder}: part {missing[0]:05} of {counts.pop():05} of split {split!r} is missing")
    return sorted(path for path, _ in parts)


def _inside(folder: Path) -> list[Path]:
    return _row_files(folder) if folder.is_dir() else []
