"""The C++ backend: finding, loading and calling it. The sources are in ``cpp``, built by ``setup.py``."""

import ctypes
from functools import cache
from pathlib import Path

import torch

DTYPES = ()  # of tables
LEVELS = {"AVX512": ("avx512", "avx2", "portable"), "AVX2": ("avx2", "portable")}


@cache
def library() -> ctypes.CDLL | None:
    """The kernels for the best instructions that this processor has, or None where none are built.

    ``ATEN_CPU_CAPABILITY`` (default, avx2, avx512) limits them as it limits torch.
    """
    for level in LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("portable",)):
        path = library_path(level)
        if path is not None:
            return load(path)
    return None


def library_path(level: str) -> Path | None:
    """The file that was built for a level, if it was."""
    return next(iter(sorted(Path(__file__).parent.glob(f"_{level}.*.so"))), None)


def load(path: Path) -> ctypes.CDLL:
    """Loads kernels; their threads are those of the OpenMP library that torch uses."""
    for openmp in _openmp_libraries():
        ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))


def _openmp_libraries() -> list[str]:
    """Where torch's OpenMP library lies, in the form this process has it open."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    files = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines()}
    return sorted(file for file in files if "libgomp" in file or "libiomp" in file or "libomp" in file)


def use_huge_pages(table: torch.Tensor) -> None:
    """Asks for huge pages under a tensor, if the system has them: random rows are read faster then."""
    loaded = library()
    if loaded is not None:
        loaded.use_huge_pages(ctypes.c_void_p(table.data_ptr()), ctypes.c_int64(table.numel() * table.element_size()))
