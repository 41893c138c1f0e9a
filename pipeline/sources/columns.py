"""Finds columns of a table by their accepted names, converts them to plain types, and names rows in messages.

Functions here and in `pipeline.sources.source` add to a list of problems, so that a user sees all of them.
"""

from collections.abc import Sequence
from textwrap import shorten

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import did_you_mean

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
