"""What the C++ kernels are given: the structures of ``cpp/batch.h``, and checks before an address is handed over.

Shapes as in `student.kernels.reference`.
"""

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from student.kernels.reference import Tables

NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
TABLES = ("vectors", "forward", "backward")
LARGEST_SIDE = 64
FEW_TOKENS = 64  # less work than it takes to wake the other threads


_ADDRESS, _LONG, _DOUBLE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
# By function: the type of its result, and those of its arguments.
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
    "group_rows": (_LONG, [_ADDRESS, _LONG, _LONG, _LONG, *[_ADDRESS] * 3]),
    "sum_gradients": (_DOUBLE, [_ADDRESS, _INT, _ADDRESS, _ADDRESS, _LONG, _INT]),
    "catch_up": (None, [_ADDRESS, _INT, _ADDRESS, _LONG, _ADDRESS, _DOUBLE, _INT]),
    "adam_step": (None, [_ADDRESS, _INT, _ADDRESS, _LONG, *[_ADDRESS] * 3, *[_DOUBLE] * 4, _INT]),
    "dense_squares": (_DOUBLE, [_ADDRESS, _INT, _INT]),
    "dense_adam": (None, [_ADDRESS, _INT, _LONG, *[_DOUBLE] * 6, _INT]),
    "distillation_loss": (_DOUBLE, [*[_ADDRESS] * 4, _LONG, _LONG, _DOUBLE, _DOUBLE, _INT, _ADDRESS]),
}


class KernelBatch(ctypes.Structure):
    """Tables, ids and starts: addresses, so the tensors have to outlive it."""

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
        """Takes the addresses of tensors of the right kind; `check_values` looks at what is in them.

        Raises:
            ValueError: a tensor has another shape, type, layout or device.
        """
        _check("ids", ids_T, torch.int64, dimensions=1)
        _check("starts", starts_S, torch.int64, dimensions=1)
        num_starts = starts_S.shape[0]
        if num_starts == 0:
            raise ValueError("starts are one more than the sequences, at least [0]")
        height, dtype = _height_and_type(tables)
        vectors_VE, *matrices = tables
        vector_size = 0 if vectors_VE is None else vectors_VE.shape[1]
        return cls(
            *map(pointer, tables),
            *(0 if table is None else table.stride(0) for table in tables),
            height,
            vector_size,
            vector_size if with_max else 0,
            _side([table.shape[1] for table in matrices if table is not None]),
            NUMBERS[dtype],
            pointer(ids_T),
            pointer(starts_S),
            ids_T.shape[0],
            num_starts - 1,
            1 if ids_T.shape[0] < FEW_TOKENS else torch.get_num_threads(),
        )

    def features(self) -> int:
        """Returns F, the numbers of a sequence's features."""
        return int(self.vector_size + self.max_size + self._products() * self.side**2)

    def token_features(self) -> int:
        """Returns P, the numbers of a token's features."""
        return int(self.features() + (self.vector_size if self.backward else 0))

    def _products(self) -> int:
        return (self.forward is not None) + (self.backward is not None)


class Gradients(ctypes.Structure):
    """Where the rows' gradients are written."""

    _fields_ = (
        ("vectors", ctypes.c_void_p),
        ("forward", ctypes.c_void_p),
        ("backward", ctypes.c_void_p),
        ("streamed", ctypes.c_bool),
    )


def pointer(tensor: Tensor | None) -> int | None:
    """A tensor's address; null for none."""
    return None if tensor is None else tensor.data_ptr()


def rows(buffer: Tensor | None, count: int, width: int) -> Tensor:
    """Returns float32 rows [count, width]: the first ones of a buffer, or new ones.

    Raises:
        ValueError: it is too small, or not contiguous rows of float32 of this width on the CPU.
    """
    if buffer is None:
        return torch.empty(count, width)
    _check("rows of features or gradients", buffer, torch.float32, dimensions=2)
    if buffer.shape[0] < count or buffer.shape[1] != width:
        raise ValueError(f"rows of features or gradients are {tuple(buffer.shape)}, not ({count} or more, {width})")
    return buffer[:count]


def check_values(kernels: ctypes.CDLL, batch: KernelBatch, ids_T: Tensor, starts_S: Tensor) -> None:
    """Looks at ids and starts.

    Raises:
        IndexError: an id is no row of the tables.
        ValueError: starts do not rise from 0 to T.
    """
    place = kernels.first_wrong_start(ctypes.byref(batch))
    if place >= 0:
        raise ValueError(f"starts[{place}] is {starts_S[place]}: they rise from 0 to {batch.tokens}, the number of ids")
    place = kernels.first_wrong_id(ctypes.byref(batch))
    if place >= 0:
        raise IndexError(f"ids[{place}] is {ids_T[place]}, and the tables have {batch.height} rows")


def _height_and_type(tables: Tables) -> tuple[int, torch.dtype]:
    given = {name: table for name, table in zip(TABLES, tables, strict=True) if table is not None}
    if not given:
        raise ValueError("no table is given")
    height, dtype = next((table.shape[0], table.dtype) for table in given.values())
    if dtype not in NUMBERS:
        raise ValueError(f"tables are float32, float16 or bfloat16, not {dtype}")
    for name, table in given.items():
        _check(f"the {name} table", table, dtype, dimensions=2, has_gaps=True)
        if table.numel() == 0 or table.shape[0] != height:
            raise ValueError(f"the {name} table is {tuple(table.shape)}: all have the same number of rows")
    return height, dtype


def _side(widths: list[int]) -> int:
    side = math.isqrt(widths[0]) if widths else 0
    if side > LARGEST_SIDE or any(width != side**2 for width in widths):
        raise ValueError(f"matrices of {widths} numbers: the same square, at most {LARGEST_SIDE} squared, is needed")
    return side


def _check(name: str, tensor: Tensor, dtype: torch.dtype, dimensions: int, has_gaps: bool = False) -> None:
    """``has_gaps``: there may be other numbers between the rows, see `student.model.tables.put_side_by_side`."""
    if tensor.dtype != dtype or tensor.dim() != dimensions or not tensor.is_cpu:
        wanted = f"{dimensions} dimensions of {dtype} on the CPU"
        raise ValueError(f"{name}: {tensor.dim()} dimensions of {tensor.dtype} on {tensor.device}, not {wanted}")
    if not (tensor.is_contiguous() or (has_gaps and tensor.stride(1) == 1)):
        raise ValueError(f"{name}: not contiguous")
