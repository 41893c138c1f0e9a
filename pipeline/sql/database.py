"""Connections to DuckDB, and the SQL names of sets."""

import os
from pathlib import Path
from typing import Any

import duckdb

from pipeline.errors import PASSING


def connect(path: str = ":memory:", **options: Any) -> duckdb.DuckDBPyConnection:
    """Returns a connection to a database in memory or in a file. See `duckdb.connect` for ``options``.

    Raises:
        OSError: if the process cannot open more files. DuckDB itself could abort the process there without a message.
    """
    # Opening any file first raises EMFILE as an ordinary Python error, before DuckDB's native code meets it.
    Path(os.devnull).open("rb").close()
    return duckdb.connect(path, **options)


def disk_error(error: duckdb.Error) -> OSError | None:
    """Returns the system error that a DuckDB message contains in words, such as a full disk, otherwise None."""
    message = str(error)
    code = next((code for code in sorted(PASSING) if os.strerror(code) in message), None)
    return None if code is None else OSError(code, os.strerror(code))


def view_name(set_name: str) -> str:
    """Returns the SQL name of a set: its own name, with underscores for characters that would need quotes."""
    return "".join(c if c.isalnum() else "_" for c in set_name.lower())


def words_view_name(set_name: str) -> str:
    """Returns the SQL name of the view in words of a set of tokens, or by word of a set of words."""
    return f"{view_name(set_name)}_words"


def variants_view_name(set_name: str) -> str:
    """Returns the SQL name of the view of a set's augmented rows, each with its original row."""
    return f"{view_name(set_name)}_variants"


def token_vectors_view_name(set_name: str) -> str:
    """Returns the SQL name of the view of a set's token vectors."""
    return f"{view_name(set_name)}_token_vectors"
