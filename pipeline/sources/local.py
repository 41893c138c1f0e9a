"""Local files: Parquet, CSV, TSV (GLUE's unquoted kind) and JSON lines."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from pipeline.errors import DataError, unreadable
from pipeline.tasks.task import Task

MAX_LINE_BYTES = 2**26
UNQUOTED_TSV = pc.ParseOptions(delimiter="\t", quote_char=False)
EXTENSIONS = (".parquet", ".jsonl", ".csv", ".tsv")
GLUE_FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B"}
GLUE_NAMES = {
    "validation": "dev",
    "validation_matched": "dev_matched",
    "validation_mismatched": "dev_mismatched",
}


def find(task: Task, data: Path, splits: tuple[str, ...]) -> dict[str, Path]:
    """The file of each split: in ``data`` itself or in its folder named after the task.

    A single file is the only split that is wanted, or ``train``.

    Raises:
        DataError: if the path does not exist, a split has two files, or a file could be any of several splits.
    """
    if data.is_file():
        if len(splits) > 1 and "train" not in splits:
            raise DataError(f"--data {data}: which split is it? Say so with --splits, one of {', '.join(splits)}")
        return {splits[0] if len(splits) == 1 else "train": data}
    if not data.is_dir():
        raise DataError(f"--data {data}: no such file or folder")
    names = (task.name, GLUE_FOLDERS.get(task.name, task.name.upper()))
    folders = [data / name for name in names if (data / name).is_dir()] or [data]
    path_of: dict[str, Path] = {}
    for split in splits:
        paths = [folders[0] / name for name in file_names(task, split) if (folders[0] / name).is_file()]
        if len(paths) > 1:
            both = ", ".join(p.name for p in paths)
            raise DataError(f"{folders[0]}: split {split!r} has more than one file: {both}; keep one")
        if paths:
            path_of[split] = paths[0]
    return path_of


def file_names(task: Task, split: str) -> list[str]:
    """Names that the file of a split may have."""
    stems = [split, f"{split}_partial"]
    glue = GLUE_NAMES.get(split)
    return [stem + extension for stem in stems for extension in EXTENSIONS] + ([f"{glue}.tsv"] if glue else [])


def read(path: Path, headerless_tsv_columns: tuple[str, ...] = ()) -> pa.Table:
    """All columns of a file, in file order.

    Args:
        path: the file.
        headerless_tsv_columns: names for the columns of a TSV that has no header.

    Raises:
        DataError: if the file is not what its ending says, is cut short, or is not UTF-8 (with the line).
    """
    readers: dict[str, Callable[[], pa.Table]] = {
        ".parquet": lambda: pq.read_table(path, partitioning=None),
        ".jsonl": lambda: pj.read_json(path, pj.ReadOptions(block_size=MAX_LINE_BYTES)),
        ".csv": lambda: _read_delimited(path, pc.ParseOptions(newlines_in_values=True), ()),
        ".tsv": lambda: _read_delimited(path, UNQUOTED_TSV, headerless_tsv_columns),
    }
    if path.suffix not in readers:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; known: {', '.join(EXTENSIONS)}")
    with reading(path):
        table = readers[path.suffix]()
        check_names(path, table.column_names)
    return table


def check_names(path: Path, names: Sequence[str]) -> None:
    """Raises DataError if a column is there twice, so that it is not plain which one is meant; nameless ones may be."""
    twice = next((name for name, count in Counter(names).items() if count > 1 and name), None)
    if twice is not None:
        raise DataError(f"{path}: the column {twice!r} is there twice; rename or remove one")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what can go wrong while a file is read into a DataError; of text that is not UTF-8 with the line."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        if ("UTF8" in str(error) or isinstance(error, UnicodeDecodeError)) and path.suffix != ".parquet":
            raise DataError(f"{path}: {_bad_line(path)}") from error
        raise DataError(f"{path}: not a readable {path.suffix[1:]} file: {str(error).splitlines()[0]}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends.

    Raises:
        DataError: if it cannot be read, or is not UTF-8 (with the line).
    """
    try:
        lines = [line.removesuffix("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {_bad_line(path)}") from error
    except OSError as error:
        raise DataError(f"{path}: {unreadable(error)}") from error
    return lines[:-1] if lines[-1] == "" else lines


def _read_delimited(path: Path, parse: pc.ParseOptions, headerless_columns: tuple[str, ...]) -> pa.Table:
    options, convert = delimited_options(path, parse, headerless_columns, MAX_LINE_BYTES)
    return pc.read_csv(path, options, parse, convert)


def delimited_options(
    path: Path, parse: pc.ParseOptions, headerless_columns: tuple[str, ...], block_size: int
) -> tuple[pc.ReadOptions, pc.ConvertOptions]:
    """How a CSV or TSV is read: every column as text, in which nothing is null, and in blocks of so many bytes."""
    with path.open(encoding="utf-8-sig") as stream:
        first = stream.readline()
    headerless = headerless_columns and len(first.split(parse.delimiter)) == len(headerless_columns)
    names = list(headerless_columns) if headerless else first.rstrip("\r\n").split(parse.delimiter)
    convert = pc.ConvertOptions(
        column_types={name.strip('"'): pa.string() for name in names}, strings_can_be_null=False
    )
    return pc.ReadOptions(column_names=names if headerless else None, block_size=block_size), convert


def _bad_line(path: Path) -> str:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return f"line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8"
    return "is not UTF-8; save the file as UTF-8"
