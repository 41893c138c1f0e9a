"""Finds columns of a table by their accepted names, converts them to plain types, and names rows in messages.

`datasets` writes the names of classes into the schema's metadata. The number of a class means the name that its own
file gives it, whatever the order of labels in a manifest.

Functions here and in `pipeline.sources.source` add to a list of problems, so that a user sees all of them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError, did_you_mean
from pipeline.tasks.task import Task

MAX_EXAMPLES = 3
MAX_TYPE = 80  # characters of a type in a message
LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
KEY = b"huggingface"
NO_CLASS = -1  # the number that `datasets` writes for a row without gold
BLANK = r"^[\pZ\p{Cc}\p{Cf}]*$"  # spaces, control characters such as line breaks, and those of no width
WHOLE_NUMBER = re.compile(r"-?[0-9]+")

Names = Mapping[str, tuple[str, ...]]


def column_name(
    names: Sequence[str], place: str, accepted: Sequence[str], problems: list[str], taken: Sequence[str] = ()
) -> str | None:
    """Returns the first accepted name that is among a table's columns. Adds a problem if there is none.

    Args:
        names: the columns of the table.
        place: file or hub address, for messages.
        accepted: names that the column may have.
        problems: the list of problems, which may get another one.
        taken: columns with another role.
    """
    name = next((name for name in accepted if name in names), None)
    if name is None:
        wanted = " or ".join(repr(a) for a in accepted)
        problems.append(f"{place}: no column {wanted}. {did_you_mean(accepted[0], names, taken)}")
    return name


def text_column(
    table: pa.Table, place: str, accepted: Sequence[str], problems: list[str], taken: Sequence[str] = ()
) -> pa.Array:
    """Returns a column of a table as strings. Adds to the problems. See `column_name`."""
    name = column_name(table.column_names, place, accepted, problems, taken)
    return pa.nulls(table.num_rows, pa.string()) if name is None else checked_text(table, place, name, problems)


def checked_text(table: pa.Table, place: str, name: str, problems: list[str], first_row: int = 0) -> pa.Array:
    """Returns a column by its name as `text_column` does, for a table that begins with the given row of its file."""
    column = plain(table.column(name))
    if not pa.types.is_string(column.type):
        problems.append(f"{place}: column {name!r} contains {type_name(column.type)}, not text")
        return pa.nulls(table.num_rows, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        problems.append(f"{place}: column {name!r} is not valid UTF-8: {error}")
        return pa.nulls(table.num_rows, pa.string())
    if column.null_count:
        problems.append(f"{place}: {name!r} is null in {row_numbers(pc.is_null(column), first_row)}")
    return column


def blank(texts: pa.Array) -> pa.Array:
    """Returns which texts, or lists of words, have no visible character. Null has no answer but false.

    Spaces of any kind, line breaks and characters without a width are not visible.
    """
    texts = pc.binary_join(texts, "") if pa.types.is_list(texts.type) else texts
    return pc.match_substring_regex(texts, BLANK).fill_null(False)


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column in the simplest of Arrow's types for its values: texts as strings, without a dictionary.

    A column of only nulls, whose type is unknown, becomes one of strings. Bytes become text if they are UTF-8, because
    some writers of Parquet do not mark text. Other bytes do not change.
    """
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if any(is_one(column.type) for is_one in BYTES):
        try:
            return column.cast(pa.string()).combine_chunks()
        except pa.ArrowInvalid:
            return column.combine_chunks()
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        # pyarrow's cast of views to lists makes an invalid array (seen with 26.0), so the values are taken one by one.
        return pa.array(column.to_pylist(), _plain_type(column.type))
    return column.cast(_plain_type(column.type)).combine_chunks()


def plain_table(table: pa.Table) -> pa.Table:
    """A table of `plain` columns."""
    return pa.table([plain(column) for column in table.columns], table.column_names)


def type_name(kind: pa.DataType) -> str:
    """Returns a type in words. Structs with many fields are truncated."""
    return shorten(str(kind), MAX_TYPE, placeholder=" …")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return pa.float64()
    if any(is_one(kind) for is_one in LISTS):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def row_numbers(mask: pa.Array, first_row: int = 0) -> str:
    """Returns the numbers of the true rows of a boolean column in words, at most the first few."""
    return rows_in_words([first_row + number for number in pc.indices_nonzero(mask).to_pylist()])


def rows_in_words(numbers: Sequence[int]) -> str:
    """Returns numbers of rows in words, at most the first few."""
    shown = ", ".join(str(n) for n in numbers[:MAX_EXAMPLES])
    more = f", … ({len(numbers):,} rows)" if len(numbers) > MAX_EXAMPLES else ""
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}"


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
