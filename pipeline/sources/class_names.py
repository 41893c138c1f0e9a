"""The names that a file states for the numbers of its classes: `datasets` writes them into the schema's metadata.

Such a number means the name that its own file gives it, whatever the order of labels in a manifest.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.sources.columns import plain
from pipeline.tasks.task import Task

KEY = b"huggingface"
NO_CLASS = -1  # the number that `datasets` writes for a row without gold
WHOLE_NUMBER = re.compile(r"-?[0-9]+")

Names = Mapping[str, tuple[str, ...]]


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """The names of the classes 0, 1, 2, … by column, from the metadata of a schema.

    Names that only repeat the numbers ("0", "1", …) are left out, because they have no meaning.
    """
    try:
        features = json.loads((metadata or {})[KEY])["info"]["features"]
        found = {column: _names(feature) for column, feature in features.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {column: names for column, names in found.items() if any(name != str(k) for k, name in enumerate(names))}


def _names(feature: Any) -> tuple[str, ...]:
    """The names of a `ClassLabel`, or of a list of them in any way that versions of `datasets` write lists."""
    if isinstance(feature, list):
        return _names(feature[0]) if len(feature) == 1 else ()
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    return _names(feature.get("feature"))


def named(table: pa.Table, names: Names, place: str) -> pa.Table:
    """Returns a table with the names of classes instead of their numbers. -1 becomes null.

    Args:
        table: some or all columns of a file.
        names: the names of the file's classes. See `class_names`.
        place: the file, for messages.

    Raises:
        DataError: if a number has no name.
    """
    for column in table.column_names:
        if column in names:
            values = _named(plain(table.column(column)), names[column], f"{place}: column {column!r}")
            table = table.set_column(table.column_names.index(column), column, values)
    return table


def _named(numbers: pa.Array, names: tuple[str, ...], place: str) -> pa.Array:
    if pa.types.is_list(numbers.type):
        lists = pc.list_value_length(numbers).to_pylist()
        values = iter(_named(numbers.flatten(), names, place).to_pylist())
        return pa.array([None if n is None else [next(values) for _ in range(n)] for n in lists], pa.list_(pa.string()))
    if not pa.types.is_integer(numbers.type):
        return numbers
    known = pc.if_else(pc.equal(numbers, pa.scalar(NO_CLASS, numbers.type)), None, numbers)
    wrong = pc.filter(known, pc.or_(pc.less(known, 0), pc.greater_equal(known, len(names))))
    if len(wrong):
        raise DataError(f"{place} contains {wrong[0]}, but the file only names the classes 0 to {len(names) - 1}")
    return pa.array(names, pa.string()).take(known)


def check_names(task: Task, place: str, names: Names) -> None:
    """Raises DataError if names of classes are numbers that the task would interpret as the numbers of its labels."""
    for column in task.columns.label or ():
        odd = [name for name in names.get(column, ()) if WHOLE_NUMBER.fullmatch(name) and name not in task.labels]
        if odd and task.labels:
            raise DataError(
                f"{place}: column {column!r} names its classes {', '.join(names[column])}, but the manifest of "
                f"{task.name!r} has the labels {', '.join(task.labels)}. Give the labels these names in the manifest."
            )
