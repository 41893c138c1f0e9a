"""Columns of the many types that Arrow has for the same values."""

import pyarrow as pa


def plain(column: pa.ChunkedArray) -> pa.Array:
    """A column without a dictionary, and of texts of whichever kind as strings."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return column.cast(pa.string() if is_text else kind).combine_chunks()
