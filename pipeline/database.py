"""Connections to DuckDB."""

import os
from pathlib import Path
from typing import Any

import duckdb

from pipeline.errors import PASSING


def connect(path: str = ":memory:", **options: Any) -> duckdb.DuckDBPyConnection:
    """A connection to a database in memory, or to a file; ``options`` as of `duckdb.connect`.

    Raises:
        OSError: if the process may open no more files. DuckDB may end it, without a word to the user.
    """
    Path(os.devnull).open("rb").close()
    return duckdb.connect(path, **options)


def disk_error(error: duckdb.Error) -> OSError | None:
    """The system's error that DuckDB tells of in words, such as that the disk is full; None if it is about none."""
    said = str(error)
    code = next((code for code in sorted(PASSING) if os.strerror(code) in said), None)
    return None if code is None else OSError(code, os.strerror(code))
