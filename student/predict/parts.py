"""A file of rows that is written in parts: a killed process loses one of them, and nobody ever sees half of the file.

The parts lie in a hidden folder beside the file. At the end the file is made of them, gets its name in one step, and
the folder is removed. The ending of its name decides the format, see `FORMATS`.
"""

import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.files import locked, make_folder, sha256, write_atomically
from pipeline.record_file import read_record, write_record
from pipeline.resumable import FilePart, Workspace, require_same_settings
from pipeline.untrusted import without_nan

# A killed process repeats at most one part, and each part makes one row group of reasonable size.
ROWS_PER_PART, BYTES_PER_PART = 2**16, 2**26
# The settings are stored in the footer, so that a moved file still shows what made it.
PARQUET = ".parquet"
SETTINGS_KEY = b"distill.settings"

Settings = dict[str, Any]


def write_in_parts(path: Path, settings: Settings, tables: Callable[[int], Iterable[pa.Table]]) -> bool:
    """Writes a file of rows, or goes on with it.

    Args:
        path: the file, whose name has one of the endings of `FORMATS`.
        settings: everything that determines its content, as JSON values. They are stored in the footer of a Parquet
            file, and next to other files in a hidden file.
        tables: returns, for the number of written rows, the other rows in order, in at least one table of the same
            columns.

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
    with locked(folder / "lock", f"{path}: another process is writing it. Wait for it, or choose another file"):
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
        existing = _stored_settings(path)
    except (pa.ArrowException, OSError, KeyError, ValueError, DataError) as error:
        raise DataError(
            f"{path}: there is a file of this name that is not ours. Choose another, or remove it."
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
    whole = folder / f"whole{path.suffix}"
    join = FORMATS[path.suffix.lower()]
    write_atomically(whole, lambda temporary: join(temporary, [folder / part.path for part in parts], settings))
    if path.suffix.lower() != PARQUET:
        # The record gets its name first: a file without one would be taken for somebody else's. It is made in the
        # folder of parts, which takes what a killed process leaves with it.
        write_record(folder / "record.json", {"settings": settings, "sha256": sha256(whole)})
        (folder / "record.json").replace(_record_of(path))
    # The rename is the only change that others can see, so nobody reads half a file.
    whole.replace(path)


def _part(number: int) -> FilePart:
    return FilePart(f"part-{number:05}.parquet")


def _in_parts(tables: Iterable[pa.Table], is_first: bool) -> Iterator[pa.Table]:
    """Yields tables joined to the size of a part. There is a first part even without rows."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(t.num_rows for t in waiting) >= ROWS_PER_PART or sum(t.nbytes for t in waiting) >= BYTES_PER_PART:
            yield pa.concat_tables(waiting)
            waiting, is_first = [], False
    # A file without rows still needs one part, which gives it its columns.
    if is_first or any(table.num_rows for table in waiting):
        yield pa.concat_tables(waiting)


def _stored_settings(path: Path) -> Settings:
    """The settings that made a file.

    Raises:
        KeyError, ValueError, OSError, DataError: if it is not ours, or has been changed since.
    """
    if path.suffix.lower() == PARQUET:
        footer = pq.read_schema(path).metadata or {}
        return dict(json.loads(footer[SETTINGS_KEY]))
    record = read_record(_record_of(path))
    if record["sha256"] != sha256(path):
        raise ValueError(f"{path} was changed since it was written")
    return dict(record["settings"])


def _record_of(path: Path) -> Path:
    """Where the settings of a text file are kept, which has no footer for them."""
    return path.with_name(f".{path.name}.distill.json")


def _join_parquet(path: Path, parts: list[Path], settings: Settings) -> None:
    schema = pq.read_schema(parts[0]).with_metadata({SETTINGS_KEY: json.dumps(settings)})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in _tables(parts):
            writer.write_table(table)


def _join_delimited(delimiter: str, path: Path, parts: list[Path], settings: Settings) -> None:
    options = pc.WriteOptions(delimiter=delimiter)
    first = _flat(_read(parts[0]))
    with pc.CSVWriter(path, first.schema, write_options=options) as writer:
        for table in _tables(parts):
            writer.write_table(_flat(table))


def _join_json_lines(path: Path, parts: list[Path], settings: Settings) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for table in _tables(parts):
            for row in table.to_pylist():
                stream.write(json.dumps(without_nan(row), ensure_ascii=False, default=str) + "\n")


def _tables(parts: list[Path]) -> Iterator[pa.Table]:
    return map(_read, parts)  # one at a time, so that a file of any size fits into memory


def _read(part: Path) -> pa.Table:
    # Without `partitioning=None` a folder name such as `a=1` would add a column.
    return pq.read_table(part, partitioning=None)


def _flat(table: pa.Table) -> pa.Table:
    """The table as a delimited file can hold it: a column for each field of a struct, and lists as JSON."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            values = [None if one is None else json.dumps(one, default=str) for one in table.column(number).to_pylist()]
            table = table.set_column(number, field.name, pa.array(values, pa.string()))
    return table


Join = Callable[[Path, list[Path], Settings], None]
FORMATS: dict[str, Join] = {
    PARQUET: _join_parquet,
    ".csv": partial(_join_delimited, ","),
    ".tsv": partial(_join_delimited, "\t"),
    ".jsonl": _join_json_lines,
}
