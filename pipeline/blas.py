"""The threads of numpy's BLAS, which settings of torch do not limit."""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np

# Wheels of numpy bring OpenBLAS in one of these folders, under names of symbols that depend on the wheel.
FOLDERS = ("../numpy.libs", ".dylibs")
SYMBOLS = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")


def set_blas_threads(count: int) -> None:
    """Limits the threads of numpy's products in this process. Without an OpenBLAS of numpy's own it does nothing."""
    function = _function("set")
    if function is not None:
        function(ctypes.c_int(count))


def blas_threads() -> int | None:
    """Returns the number of threads of numpy's products, or None if it is unknown."""
    function = _function("get")
    return None if function is None else int(function())


@cache
def _function(what: str) -> "ctypes._NamedFuncPointer | None":
    home = Path(np.__file__).parent
    for path in sorted(path for folder in FOLDERS for path in (home / folder).glob("*openblas*")):
        # The library is loaded already, so this opens no second copy.
        library = ctypes.CDLL(str(path.resolve()))
        for symbol in SYMBOLS:
            function: ctypes._NamedFuncPointer | None = getattr(library, symbol.format(what), None)
            if function is not None:
                return function
    return None
