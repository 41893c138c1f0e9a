"""Connections to DuckDB."""

import os
from pathlib import Path
from typing import Any

import duckdb


def connect(path: str = ":memory:", **options: Any) -> duckdb.DuckDBPyConnection:
    """A connection to a database in memory, or to a file; ``options`` as of `duckdb.connect`.

    Raises:
        OSError: if the process may open no more files. DuckDB 1.5 would end it, without a word to the user.
    """
    Path(os.devnull).open("rb").close()
    return duckdb.connect(path, **options)
