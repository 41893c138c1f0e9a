"""Answers in NumPy's files: named arrays with the answers and with the rows that they belong to."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.errors import DataError
from pipeline.files import refuse_lfs_pointer

ENDINGS = (".npz", ".npy")
LABELS = "labels"  # the array with the names of the outputs, in their order
HOW = "np.savez(FILE, logits=LOGITS, split='validation', source_row=np.arange(len(LOGITS)), labels=NAMES)"


def read_arrays(path: Path) -> tuple[pa.Table, tuple[str, ...]]:
    """Returns the arrays of a file as a table with a row per answer, and the labels in the file, if it has them.

    A ``.npz`` has an array for each column, in which a single value applies to all rows. A ``.npy`` is one array with a
    field for each column. Nothing is read with pickle.

    Raises:
        DataError: if the file cannot be read, its arrays have no names, or are not of one length.
    """
    arrays = _arrays(path)
    labels = tuple(map(str, _texts(path, LABELS, arrays.pop(LABELS)).tolist())) if LABELS in arrays else ()
    lengths = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(lengths.values())) != 1:
        found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "none"
        raise DataError(f"{path}: its arrays have different lengths: {found}. Each needs a row for each answer")
    (num_rows,) = set(lengths.values())
    return pa.table({name: _column(path, name, array, num_rows) for name, array in arrays.items()}), labels


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    refuse_lfs_pointer(path)
    try:
        with path.open("rb") as stream:
            # The file may be untrusted, and a pickled array can run any code.
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, BadZipFile, KeyError, MemoryError) as error:
        advice = "Save texts with np.array(TEXTS, dtype=str)" if "allow_pickle" in str(error) else "Save it again"
        raise DataError(f"{path}: not a readable {path.suffix[1:].lower()} file: {error}. {advice}") from error
    if loaded.dtype.names is None:
        raise DataError(f"{path}: is one array without names, so its rows are unknown. Save it with {HOW}")
    return {name: loaded[name] for name in loaded.dtype.names}


def _column(path: Path, name: str, array: npt.NDArray[Any], num_rows: int) -> pa.Array:
    """Returns an array as a column, of lists if it has two dimensions."""
    if array.dtype.kind in "US":
        array = _texts(path, name, array)
    elif array.dtype.kind not in "biuf" or array.ndim > 2:
        raise DataError(
            f"{path}: the array {name!r} has {array.ndim} dimensions of {array.dtype} and is not a column of rows"
        )
    # Arrow's Parquet and DuckDB support float16 only in part.
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if array.ndim == 0:
        return pa.array(np.full(num_rows, array).tolist())
    if array.ndim == 1:
        return pa.array(array.tolist())
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).ravel()), array.shape[1])


def _texts(path: Path, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind not in "US" or array.ndim > 1:
        raise DataError(
            f"{path}: the array {name!r} has {array.ndim} dimensions of {array.dtype} and is not a row of texts"
        )
    try:
        return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the array {name!r} is not UTF-8: {error}") from error
