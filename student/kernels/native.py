"""Finds, loads and calls the C++ backend. The sources are in ``cpp``, built by ``setup.py``.

Shapes as in `student.kernels.reference`. The functions take contiguous tensors on the CPU and do not copy them: the
structures here, which match ``cpp/batch.h``, contain addresses. All tensors are checked before their addresses are
passed on.
"""

import ctypes
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline import console
from student.kernels.reference import RowGradients, Tables

# Tables of other types, such as int8, are gathered to float32 before a kernel reads them.
DTYPES = {torch.float32, torch.float16, torch.bfloat16}
# check.cpp holds the same number. Raise both when the arguments of a kernel change.
INTERFACE_VERSION = 8
# A processor runs the code of all lower levels, so a missing build falls back to the next one.
LEVELS = {"AVX512": ("avx512", "avx2", "portable"), "AVX2": ("avx2", "portable")}
# Gradients of more bytes than a last-level cache holds are written past the caches, which saves reading them first.
LAST_CACHE = 32 << 20
NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
TABLES = ("vectors", "forward", "backward")
# The kernels keep matrices in buffers of a fixed size on the stack.
LARGEST_SIDE = 64
# Waking the other threads takes longer than the work on so few tokens.
FEW_TOKENS = 64
_ADDRESS, _LONG, _DOUBLE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
# ctypes would pass Python integers as 32-bit numbers and truncate addresses without these declarations. For each
# function: the types of its result and of its arguments.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "interface_version": (_INT, []),
    "is_supported": (ctypes.c_bool, []),
    "use_huge_pages": (None, [_ADDRESS, _LONG]),
    "first_wrong_id": (_LONG, [_ADDRESS]),
    "first_wrong_start": (_LONG, [_ADDRESS]),
    "reduce": (None, [_ADDRESS] * 2),
    "reduce_backward": (None, [_ADDRESS] * 3),
    "scan": (None, [_ADDRESS] * 2),
    "scan_backward": (None, [_ADDRESS] * 4),
    "align": (None, [_ADDRESS] * 2),
    "align_backward": (None, [_ADDRESS] * 4),
    "pool": (None, [_ADDRESS, _ADDRESS, _LONG, _LONG, _ADDRESS]),
    "pool_backward": (None, [_ADDRESS, _ADDRESS, _LONG, _LONG, *[_ADDRESS] * 3]),
    "recur": (None, [_ADDRESS] * 3),
    "recur_backward": (None, [_ADDRESS] * 6),
    "group_rows": (_LONG, [_ADDRESS, _LONG, _LONG, _LONG, *[_ADDRESS] * 3]),
    "sum_gradients": (_DOUBLE, [_ADDRESS, _INT, _ADDRESS, _ADDRESS, _LONG, _INT]),
    "catch_up": (None, [_ADDRESS, _INT, _ADDRESS, _LONG, _ADDRESS, _DOUBLE, _INT]),
    "adam_step": (None, [_ADDRESS, _INT, _ADDRESS, _LONG, *[_ADDRESS] * 3, *[_DOUBLE] * 4, _INT]),
    "dense_squares": (_DOUBLE, [_ADDRESS, _INT, _INT]),
    "dense_adam": (None, [_ADDRESS, _INT, _LONG, *[_DOUBLE] * 6, _INT]),
    "distillation_loss": (_DOUBLE, [*[_ADDRESS] * 4, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT, _ADDRESS]),
}


class KernelBatch(ctypes.Structure):
    """Addresses of tables, ids and starts. The tensors have to outlive it."""

    _fields_ = (
        ("vectors", ctypes.c_void_p),
        ("forward", ctypes.c_void_p),
        ("backward", ctypes.c_void_p),
        ("vectors_stride", ctypes.c_int64),
        ("forward_stride", ctypes.c_int64),
        ("backward_stride", ctypes.c_int64),
        ("height", ctypes.c_int64),
        ("vector_size", ctypes.c_int64),
        ("max_size", ctypes.c_int64),
        ("side", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("ids", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("sequences", ctypes.c_int64),
        ("threads", ctypes.c_int64),
    )

    @classmethod
    def of(cls, tables: Tables, ids_T: Tensor, starts_S: Tensor, with_max: bool = False) -> "KernelBatch":
        """Takes the addresses of tensors of the right type. `check_values` checks their content.

        Raises:
            ValueError: a tensor has another shape, type, layout or device.
        """
        # C++ cannot check a tensor, so a wrong type or stride here would read or write foreign memory.
        check_tensor("ids", ids_T, torch.int64, dimensions=1)
        check_tensor("starts", starts_S, torch.int64, dimensions=1)
        num_starts = starts_S.shape[0]
        if num_starts == 0:
            raise ValueError("starts[0] is missing: starts are one more than the sequences, at least [0]")
        height, dtype = _height_and_type(tables)
        vectors_VE, *matrices = tables
        vector_size = 0 if vectors_VE is None else vectors_VE.shape[1]
        widths = [table.shape[1] for table in matrices if table is not None]
        side = math.isqrt(widths[0]) if widths else 0
        if side > LARGEST_SIDE or any(width != side**2 for width in widths):
            raise ValueError(
                f"matrices of {widths} numbers: they must be the same square, of at most {LARGEST_SIDE} squared"
            )
        return cls(
            *map(pointer, tables),
            *(0 if table is None else table.stride(0) for table in tables),
            height,
            vector_size,
            vector_size if with_max else 0,
            side,
            NUMBERS[dtype],
            pointer(ids_T),
            pointer(starts_S),
            ids_T.shape[0],
            num_starts - 1,
            # Following torch's number of threads lets one setting, such as OMP_NUM_THREADS, limit both.
            threads_for(ids_T.shape[0]),
        )

    def features(self) -> int:
        """Returns F, the number of a sequence's features."""
        products = (self.forward is not None) + (self.backward is not None)
        return int(self.vector_size + self.max_size + products * self.side**2)

    def token_features(self) -> int:
        """Returns P, the number of a token's features."""
        # A scan stores suffix sums besides prefix sums, because the two differ at each token.
        return int(self.features() + (self.vector_size if self.backward else 0))


class Gradients(ctypes.Structure):
    """Returns the addresses of the buffers for the rows' gradients."""

    _fields_ = (
        ("vectors", ctypes.c_void_p),
        ("forward", ctypes.c_void_p),
        ("backward", ctypes.c_void_p),
        ("streamed", ctypes.c_bool),
    )


@cache
def library() -> ctypes.CDLL | None:
    """Returns the kernels for the best instructions of this processor, or None if they are not built.

    ``ATEN_CPU_CAPABILITY`` (default, avx2, avx512) limits them like torch. The variable may exceed the processor's
    instructions, so `is_supported` queries the processor itself.
    """
    for level in LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("portable",)):
        path = library_path(level)
        # A source installation without a compiler has no library at all, and the plain kernels take over.
        if path is None:
            continue
        loaded = load(path)
        # An editable installation keeps old builds after an update, and their structures may have another layout.
        if not is_current(loaded):
            console.warn(f"{path}: built from other sources, so it is not used. Install this package again")
        elif loaded.is_supported():
            return loaded
    return None


def is_current(loaded: ctypes.CDLL) -> bool:
    """Whether kernels match the arguments of this version of the package. Others would read foreign memory."""
    return hasattr(loaded, "interface_version") and loaded.interface_version() == INTERFACE_VERSION


def library_path(level: str) -> Path | None:
    """Returns the library for a level of instructions, if it was built."""
    return next(iter(sorted(Path(__file__).parent.glob(f"_{level}.*.so"))), None)


def load(path: Path) -> ctypes.CDLL:
    """Loads kernels. They use the threads of torch's OpenMP library."""
    # A second OpenMP runtime in the process would start its own threads and compete with torch for the cores. Torch
    # ships OpenMP under a hashed file name, so only the list of mapped files gives its path.
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    for file in sorted({line.split(maxsplit=5)[-1].strip() for line in lines}):
        if "libgomp" in file or "libiomp" in file or "libomp" in file:
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        # Outdated kernels lack functions. `is_current` reports them after loading, with a warning instead of an error.
        function = getattr(loaded, name, None)
        if function is not None:
            function.restype, function.argtypes = result, arguments
    return loaded


def use_huge_pages(table: Tensor) -> None:
    """Requests huge pages for a tensor, if the system has them, so that random rows are read faster."""
    # Huge pages are a hint: without them the results are the same, so nothing is reported.
    loaded = library()
    if loaded is not None:
        loaded.use_huge_pages(pointer(table), table.numel() * table.element_size())


def reduce(
    tables: Tables, ids_T: Tensor, starts_S: Tensor, out: Tensor | None = None, with_max: bool = False
) -> Tensor:
    """The compiled `reference.reduce`.

    Args:
        tables: all float32, or all float16 or bfloat16.
        ids_T: int64.
        starts_S: int64.
        out: float32, at least N rows of F, to be written and returned.
        with_max: as for `reference.reduce`.

    Raises:
        IndexError: an id is no row of the tables.
        ValueError: starts do not ascend from 0 to T, or a tensor has a wrong type or shape.
    """
    batch = KernelBatch.of(tables, ids_T, starts_S, with_max)
    check_values(batch, ids_T, starts_S)
    features_NF = rows(out, batch.sequences, batch.features())
    kernels().reduce(ctypes.byref(batch), pointer(features_NF))
    return features_NF


def scan(tables: Tables, ids_T: Tensor, starts_S: Tensor, out: Tensor | None = None) -> Tensor:
    """The compiled `reference.scan`. See `reduce` for arguments and errors. ``out`` has at least T rows of P."""
    batch = KernelBatch.of(tables, ids_T, starts_S)
    check_values(batch, ids_T, starts_S)
    features_TP = rows(out, batch.tokens, batch.token_features())
    kernels().scan(ctypes.byref(batch), pointer(features_TP))
    return features_TP


def reduce_backward(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    grad_NF: Tensor,
    out: RowGradients | None = None,
    with_max: bool = False,
) -> RowGradients:
    """Returns the gradient of every token's rows, from the gradient of the features.

    Args:
        tables: all float32.
        ids_T: int64.
        starts_S: int64.
        grad_NF: float32.
        out: float32, at least T rows each, to be written and returned.
        with_max: as for `reference.reduce`.

    Returns: grad_vectors_TE, grad_forward_TM, grad_backward_TM, or None without the table.
    """
    batch = KernelBatch.of(tables, ids_T, starts_S, with_max)
    check_values(batch, ids_T, starts_S)
    grad_NF = rows(grad_NF, batch.sequences, batch.features())
    gradients, pointers = _gradients(tables, batch, out)
    kernels().reduce_backward(ctypes.byref(batch), pointer(grad_NF), ctypes.byref(pointers))
    return gradients


def scan_backward(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    features_TP: Tensor,
    grad_TP: Tensor,
    out: RowGradients | None = None,
) -> RowGradients:
    """Like `reduce_backward`, from the gradient of ``features_TP``, the result of `scan`."""
    batch = KernelBatch.of(tables, ids_T, starts_S)
    check_values(batch, ids_T, starts_S)
    features_TP = rows(features_TP, batch.tokens, batch.token_features())
    grad_TP = rows(grad_TP, batch.tokens, batch.token_features())
    gradients, pointers = _gradients(tables, batch, out)
    kernels().scan_backward(ctypes.byref(batch), pointer(features_TP), pointer(grad_TP), ctypes.byref(pointers))
    return gradients


def _gradients(tables: Tables, batch: KernelBatch, out: RowGradients | None) -> tuple[RowGradients, Gradients]:
    # Half-precision tables store rounded residuals, and most updates would be smaller than that rounding.
    if any(table is not None and table.dtype != torch.float32 for table in tables):
        raise ValueError("only float32 tables have gradients")
    vectors, forward, backward = (
        None if table is None else rows(buffer, batch.tokens, table.shape[1])
        for table, buffer in zip(tables, out or (None, None, None), strict=True)
    )
    gradients = vectors, forward, backward
    # All tables are written in the same pass, so their sum decides whether they fit the cache.
    num_bytes = sum(4 * gradient.numel() for gradient in gradients if gradient is not None)
    return gradients, Gradients(*map(pointer, gradients), num_bytes > LAST_CACHE)


def threads_for(num_tokens: int) -> int:
    """Returns the number of threads that share so many tokens."""
    return 1 if num_tokens < FEW_TOKENS else torch.get_num_threads()


def kernels() -> ctypes.CDLL:
    """Returns the library, whose presence the caller has checked.

    Raises:
        RuntimeError: the kernels are not built.
    """
    loaded = library()
    if loaded is None:
        raise RuntimeError("the compiled kernels are not built")
    return loaded


def pointer(tensor: Tensor | None) -> int | None:
    """Returns a tensor's address, or null for None."""
    return None if tensor is None else tensor.data_ptr()


def rows(buffer: Tensor | None, count: int, width: int) -> Tensor:
    """Returns float32 rows [count, width]: the first ones of a buffer, or new ones.

    Raises:
        ValueError: the buffer is too small, or not contiguous rows of float32 of this width on the CPU.
    """
    if buffer is None:
        return torch.empty(count, width)
    check_tensor("rows of features or gradients", buffer, torch.float32, dimensions=2)
    if buffer.shape[0] < count or buffer.shape[1] != width:
        raise ValueError(f"rows of features or gradients are {tuple(buffer.shape)}, not ({count} or more, {width})")
    return buffer[:count]


def check_values(batch: KernelBatch, ids_T: Tensor, starts_S: Tensor) -> None:
    """Checks ids and starts.

    Raises:
        IndexError: an id is no row of the tables.
        ValueError: starts do not ascend from 0 to T.
    """
    # The starts are checked first, because the check of the ids relies on their number being right.
    check_starts(batch, starts_S)
    place = kernels().first_wrong_id(ctypes.byref(batch))
    if place >= 0:
        raise IndexError(f"ids[{place}] is {ids_T[place]}, but the tables have {batch.height} rows")


def can_do(rows: Tensor) -> bool:
    """Whether there are kernels for rows of this type and device, beside those of `reduce` and `scan`."""
    return library() is not None and rows.dtype == torch.float32 and rows.is_cpu


def check_rows(rows: Tensor, starts_S: Tensor) -> int:
    """Checks the rows of all tokens and the starts of sentences. Returns the number of sentences.

    Raises:
        ValueError: starts do not ascend from 0 to T, or a tensor has a wrong type or shape.
    """
    check_tensor("rows of tokens", rows, torch.float32, dimensions=2)
    check_tensor("starts", starts_S, torch.int64, dimensions=1)
    num_sentences = len(starts_S) - 1
    check_starts(KernelBatch(starts=pointer(starts_S), tokens=len(rows), sequences=num_sentences), starts_S)
    return num_sentences


def check_starts(batch: KernelBatch, starts_S: Tensor) -> None:
    """Checks starts.

    Raises:
        ValueError: starts do not ascend from 0 to T.
    """
    if len(starts_S) == 0:
        raise ValueError("starts[0] is missing: starts are one more than the sequences, at least [0]")
    place = kernels().first_wrong_start(ctypes.byref(batch))
    if place >= 0:
        raise ValueError(
            f"starts[{place}] is {starts_S[place]}: starts must ascend from 0 to {batch.tokens}, the number of tokens"
        )


def _height_and_type(tables: Tables) -> tuple[int, torch.dtype]:
    given = {name: table for name, table in zip(TABLES, tables, strict=True) if table is not None}
    if not given:
        raise ValueError("no table is given")
    height, dtype = next((table.shape[0], table.dtype) for table in given.values())
    # All tables share one type, so that a kernel is compiled once per type and not per combination.
    if dtype not in NUMBERS:
        raise ValueError(f"tables are float32, float16 or bfloat16, not {dtype}")
    for name, table in given.items():
        check_tensor(f"the {name} table", table, dtype, dimensions=2, has_gaps=True)
        if table.numel() == 0 or table.shape[0] != height:
            raise ValueError(f"the {name} table is {tuple(table.shape)}: all tables must have the same number of rows")
    return height, dtype


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, dimensions: int, has_gaps: bool = False) -> None:
    """Checks what the kernels rely on.

    With ``has_gaps``, other numbers may be between the rows. See `student.model.tables.put_side_by_side`.

    Raises:
        ValueError: the tensor has another type, layout or device.
    """
    if tensor.dtype != dtype or tensor.dim() != dimensions or not tensor.is_cpu:
        wanted = f"{dimensions} dimensions of {dtype} on the CPU"
        raise ValueError(f"{name}: {tensor.dim()} dimensions of {tensor.dtype} on {tensor.device}, not {wanted}")
    if not (tensor.is_contiguous() or (has_gaps and tensor.stride(1) == 1)):
        raise ValueError(f"{name}: not contiguous")
