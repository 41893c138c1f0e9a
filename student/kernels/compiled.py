"""The C++ backend: finding, loading and calling it. The sources are in ``cpp``, built by ``setup.py``.

Shapes as in `student.kernels.reference`. The functions take contiguous tensors on the CPU and copy none of them.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pipeline import console
from student.kernels.arguments import SIGNATURES, Gradients, KernelBatch, check_values, pointer, rows
from student.kernels.reference import RowGradients, Tables

DTYPES = {torch.float32, torch.float16, torch.bfloat16}  # of tables
INTERFACE_VERSION = 6  # of check.cpp: raise both when the arguments of a kernel change
LEVELS = {"AVX512": ("avx512", "avx2", "portable"), "AVX2": ("avx2", "portable")}
LAST_CACHE = 32 << 20  # bytes; gradients larger than this are written past the caches


@cache
def library() -> ctypes.CDLL | None:
    """The kernels for the best instructions that this processor has, or None where none are built.

    ``ATEN_CPU_CAPABILITY`` (default, avx2, avx512) limits them as it limits torch, which believes it also where it
    promises more than there is: `is_supported` asks the processor.
    """
    for level in LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("portable",)):
        path = library_path(level)
        if path is None:
            continue
        loaded = load(path)
        if not is_current(loaded):
            console.warn(f"{path}: built from other sources, and not used; install this package again")
        elif loaded.is_supported():
            return loaded
    return None


def is_current(loaded: ctypes.CDLL) -> bool:
    """Whether kernels take what this version of the package hands over; others would read foreign memory."""
    return hasattr(loaded, "interface_version") and loaded.interface_version() == INTERFACE_VERSION


def library_path(level: str) -> Path | None:
    """The file that was built for a level, if it was."""
    return next(iter(sorted(Path(__file__).parent.glob(f"_{level}.*.so"))), None)


def load(path: Path) -> ctypes.CDLL:
    """Loads kernels; their threads are those of the OpenMP library that torch uses."""
    for openmp in _openmp_libraries():
        ctypes.CDLL(openmp, mode=ctypes.RTLD_GLOBAL)
    kernels = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(kernels, name, None)  # one is missing from kernels that are not current
        if function is not None:
            function.restype, function.argtypes = result, arguments
    return kernels


def _openmp_libraries() -> list[str]:
    """Where torch's OpenMP library lies, in the form this process has it open."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    files = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines()}
    return sorted(file for file in files if "libgomp" in file or "libiomp" in file or "libomp" in file)


def use_huge_pages(table: Tensor) -> None:
    """Asks for huge pages under a tensor, if the system has them: random rows are read faster then."""
    loaded = library()
    if loaded is not None:
        loaded.use_huge_pages(pointer(table), table.numel() * table.element_size())


def reduce(
    tables: Tables, ids_T: Tensor, starts_S: Tensor, out: Tensor | None = None, with_max: bool = False
) -> Tensor:
    """`reference.reduce`, at the speed of the machine.

    Args:
        tables: all float32, or all float16 or bfloat16.
        ids_T: int64.
        starts_S: int64.
        out: float32, at least N rows of F, to be written and returned.
        with_max: as for `reference.reduce`.

    Raises:
        IndexError: an id is no row of the tables.
        ValueError: starts do not rise from 0 to T, or a tensor is not as it should be.
    """
    batch = KernelBatch.of(tables, ids_T, starts_S, with_max)
    check_values(_kernels(), batch, ids_T, starts_S)
    features_NF = rows(out, batch.sequences, batch.features())
    _kernels().reduce(ctypes.byref(batch), pointer(features_NF))
    return features_NF


def scan(tables: Tables, ids_T: Tensor, starts_S: Tensor, out: Tensor | None = None) -> Tensor:
    """`reference.scan`; arguments and errors as of `reduce`, ``out`` of at least T rows of P."""
    batch = KernelBatch.of(tables, ids_T, starts_S)
    check_values(_kernels(), batch, ids_T, starts_S)
    features_TP = rows(out, batch.tokens, batch.token_features())
    _kernels().scan(ctypes.byref(batch), pointer(features_TP))
    return features_TP


def reduce_backward(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    grad_NF: Tensor,
    out: RowGradients | None = None,
    with_max: bool = False,
) -> RowGradients:
    """The gradient of every token's rows, from that of the features.

    Args:
        tables: all float32.
        ids_T: int64.
        starts_S: int64.
        grad_NF: float32.
        out: float32, at least T rows each, to be written and returned.
        with_max: as for `reference.reduce`.

    Returns:
        grad_vectors_TE, grad_forward_TM, grad_backward_TM; None where there is no table.
    """
    batch = KernelBatch.of(tables, ids_T, starts_S, with_max)
    check_values(_kernels(), batch, ids_T, starts_S)
    grad_NF = rows(grad_NF, batch.sequences, batch.features())
    gradients, pointers = _gradients(tables, batch, out)
    _kernels().reduce_backward(ctypes.byref(batch), pointer(grad_NF), ctypes.byref(pointers))
    return gradients


def scan_backward(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    features_TP: Tensor,
    grad_TP: Tensor,
    out: RowGradients | None = None,
) -> RowGradients:
    """As `reduce_backward`, from the gradient of ``features_TP``, which `scan` gave."""
    batch = KernelBatch.of(tables, ids_T, starts_S)
    check_values(_kernels(), batch, ids_T, starts_S)
    features_TP = rows(features_TP, batch.tokens, batch.token_features())
    grad_TP = rows(grad_TP, batch.tokens, batch.token_features())
    gradients, pointers = _gradients(tables, batch, out)
    _kernels().scan_backward(ctypes.byref(batch), pointer(features_TP), pointer(grad_TP), ctypes.byref(pointers))
    return gradients


def _gradients(tables: Tables, batch: KernelBatch, out: RowGradients | None) -> tuple[RowGradients, Gradients]:
    if any(table is not None and table.dtype != torch.float32 for table in tables):
        raise ValueError("only float32 tables have gradients")
    vectors, forward, backward = (
        None if table is None else rows(buffer, batch.tokens, table.shape[1])
        for table, buffer in zip(tables, out or (None, None, None), strict=True)
    )
    gradients = vectors, forward, backward
    num_bytes = sum(4 * gradient.numel() for gradient in gradients if gradient is not None)
    return gradients, Gradients(*map(pointer, gradients), num_bytes > LAST_CACHE)


def _kernels() -> ctypes.CDLL:
    loaded = library()
    if loaded is None:
        raise RuntimeError("the compiled kernels are not built")
    return loaded
