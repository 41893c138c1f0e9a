"""A Parquet file that is written in parts: a killed process loses one of them, and nobody ever sees half of the file.

The parts lie in a hidden folder beside the file. At the end the file is made of them, gets its name in one step, and
the folder is removed.
"""

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.files import locked, make_folder, write_atomically
from pipeline.work import FilePart, Workspace, require_same_settings

# A killed process repeats at most one part, and each part makes one row group of reasonable size.
ROWS_PER_PART, BYTES_PER_PART = 2**16, 2**26
# The settings are stored in the footer, so that a moved file still shows what made it.
SETTINGS_KEY = b"distill.settings"

Settings = dict[str, Any]


def write_in_parts(path: Path, settings: Settings, tables: Callable[[int], Iterable[pa.Table]]) -> bool:
    """Writes a Parquet file, or goes on with it.

    Args:
        path: the file.
        settings: everything that decides its content, as JSON values; they are stored in its footer.
        tables: given how many rows are written already, the others, in order, in tables of the same columns; one table
            at least.

    Returns:
        Whether there was anything to write: False if the file was there already, of the same settings.

    Raises:
        FingerprintMismatchError: if the file or its parts are there, of other settings, naming each that differs.
        DataError: if another process is writing it, or it cannot be written.
    """
    folder = path.with_name(f".{path.name}.distill-parts")
    # A leftover folder of parts means that a process was killed while it removed them.
    if _is_there(path, settings) and not folder.exists():
        return False
    make_folder(folder)
    with locked(folder / "lock", f"{path}: is being written by another process; wait for it, or choose another file"):
        # Another process may have finished the file while this one waited for the lock.
        is_new = not _is_there(path, settings)
        if is_new:
            _write(folder, path, settings, tables)
        shutil.rmtree(folder, ignore_errors=True)
    return is_new


def _is_there(path: Path, settings: Settings) -> bool:
    if not path.exists():
        return False
    try:
        footer = pq.read_schema(path).metadata or {}
        existing = json.loads(footer[SETTINGS_KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path}: there is a file of this name that is not ours; choose another, or remove it"
        ) from error
    require_same_settings(f"{path} was", existing, settings, "Choose another file, or remove it")
    return True


def _write(folder: Path, path: Path, settings: Settings, tables: Callable[[int], Iterable[pa.Table]]) -> None:
    advice = "Choose another file, or remove that folder to begin anew"
    work = Workspace(folder, settings, title=f"parts of {path}", advice=advice)
    work.start()
    # Parts are written in order, so the first missing number is where to continue.
    count = next(number for number in itertools.count() if not work.has(_part(number)))
    parts = [_part(number) for number in range(count)]
    # Footers hold the number of rows, so finished parts are not read again.
    rows = sum(pq.read_metadata(folder / part.path).num_rows for part in parts)
    for table in _in_parts(tables(rows), is_first=not parts):
        parts.append(_part(len(parts)))
        work.write_table(parts[-1], table)
    whole = folder / "whole.parquet"
    write_atomically(whole, lambda temporary: _join(temporary, [folder / part.path for part in parts], settings))
    # The rename is the only change that others can see, so nobody reads half a file.
    whole.replace(path)


def _part(number: int) -> FilePart:
    return FilePart(f"part-{number:05}.parquet")


def _in_parts(tables: Iterable[pa.Table], is_first: bool) -> Iterator[pa.Table]:
    """Tables joined to the size of a part; the first part is one even without rows."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(t.num_rows for t in waiting) >= ROWS_PER_PART or sum(t.nbytes for t in waiting) >= BYTES_PER_PART:
            yield pa.concat_tables(waiting)
            waiting, is_first = [], False
    # A file without rows still needs one part, which gives it its columns.
    if is_first or any(table.num_rows for table in waiting):
        yield pa.concat_tables(waiting)


def _join(path: Path, parts: list[Path], settings: Settings) -> None:
    schema = pq.read_schema(parts[0]).with_metadata({SETTINGS_KEY: json.dumps(settings)})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts:
            # Without `partitioning=None` a folder name such as `a=1` would add a column.
            writer.write_table(pq.read_table(part, partitioning=None))
