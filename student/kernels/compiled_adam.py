"""Adam on rows in C++ (``cpp/row_adam.cpp``): float32 on a CPU. The functions are those of `reference_adam`.

Shapes: T tokens, R distinct rows, V rows, X numbers of a row.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from student.kernels.compiled import library
from student.kernels.reference_adam import RowState
from student.missed_moves import MissedMoves


class _Table(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("value", "m", "v", "gradient")),
        ("width", ctypes.c_int64),
    )


class _Parameter(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("value", "m", "v", "gradient")),
        ("size", ctypes.c_int64),
    )


class _Missed(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("row", "moments", "large", "small", "kept")),
        *((name, ctypes.c_int64) for name in ("first", "step")),
        *((name, ctypes.c_double) for name in ("beta1", "beta2", "eps")),
    )


@dataclass(frozen=True)
class Groups:
    """The distinct rows of a batch's tokens.

    Attributes:
        rows_R: their numbers.
        starts_S: where each one's tokens start, R + 1 of them.
        tokens_T: the tokens, by row.
    """

    rows_R: Tensor
    starts_S: Tensor
    tokens_T: Tensor


def group(ids_T: Tensor, num_rows: int, padding_idx: int) -> Groups:
    """Groups tokens by row, those of the padding left out."""
    rows_T, starts_T, tokens_T = torch.empty_like(ids_T), ids_T.new_empty(len(ids_T) + 1), torch.empty_like(ids_T)
    sizes = (ctypes.c_int64(size) for size in (len(ids_T), num_rows, padding_idx))
    count = _kernels().group_rows(_pointer(ids_T), *sizes, *map(_pointer, (rows_T, starts_T, tokens_T)))
    if count < 0:
        raise IndexError(f"token {-1 - count}: id {int(ids_T[-1 - count])} is not a row of a table of {num_rows}")
    return Groups(rows_T[:count], starts_T[: count + 1], tokens_T)


def sum_gradients(states: Sequence[RowState], groups: Groups) -> float:
    """Adds up the gradients of each row's tokens, in that of its first token; returns the sum of all squares."""
    places = map(_pointer, (groups.starts_S, groups.tokens_T))
    return float(_kernels().sum_gradients(*_tables(states), *places, _long(groups.rows_R), _threads()))


def catch_up(states: Sequence[RowState], rows_R: Tensor, missed: MissedMoves, eps: float) -> None:
    """Brings the values of rows (all different) to where dense Adam would have them after the last step."""
    rows = (_pointer(rows_R), _long(rows_R))
    _kernels().catch_up(*_tables(states), *rows, ctypes.byref(_missed(missed, eps)), _threads())


def step(
    states: Sequence[RowState],
    groups: Groups,
    missed: MissedMoves,
    lr: float,
    weight_decay: float,
    eps: float,
    scale: float,
) -> None:
    """One step of AdamW on rows that are up to date, with the sums of their gradients times ``scale``."""
    rows = (_pointer(groups.rows_R), _long(groups.rows_R), _pointer(groups.starts_S), _pointer(groups.tokens_T))
    numbers = (ctypes.c_double(number) for number in (lr, weight_decay, scale))
    _kernels().adam_step(*_tables(states), *rows, ctypes.byref(_missed(missed, eps)), *numbers, _threads())


def squares(gradients: Sequence[Tensor]) -> float:
    """The sum of the squares of all gradients."""
    arrays = [_Parameter(None, None, None, part.data_ptr(), part.numel()) for part in gradients]
    return float(_kernels().dense_squares((_Parameter * len(arrays))(*arrays), len(arrays), _threads()))


def dense_step(
    arrays: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    step: int,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    scale: float,
) -> None:
    """Step number ``step`` of AdamW on whole parameters: value, both moments and gradient of each, contiguous."""
    parameters = [_Parameter(*(part.data_ptr() for part in four), four[0].numel()) for four in arrays]
    numbers = (ctypes.c_double(number) for number in (beta1, beta2, eps, lr, weight_decay, scale))
    places = ((_Parameter * len(parameters))(*parameters), len(parameters))
    _kernels().dense_adam(*places, ctypes.c_int64(step), *numbers, _threads())


@cache
def _kernels() -> ctypes.CDLL:
    kernels = library()
    assert kernels is not None, "whoever calls has looked"
    kernels.group_rows.restype = ctypes.c_int64
    kernels.sum_gradients.restype = kernels.dense_squares.restype = ctypes.c_double
    return kernels


def _tables(states: Sequence[RowState]) -> tuple[ctypes.Array[_Table], int]:
    tables = [
        _Table(*(tensor.data_ptr() for tensor in (s.value_VX, s.m_VX, s.v_VX, s.gradient_TX)), s.value_VX.shape[1])
        for s in states
    ]
    return (_Table * len(tables))(*tables), len(tables)


def _missed(missed: MissedMoves, eps: float) -> _Missed:
    rows = (missed.row_V.data_ptr(), missed.moments_V.data_ptr())
    steps = (part.ctypes.data for part in (missed.large_S, missed.small_S, missed.kept_S))
    return _Missed(*rows, *steps, missed.first, missed.step, missed.beta1, missed.beta2, eps)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _long(tensor: Tensor) -> ctypes.c_int64:
    return ctypes.c_int64(len(tensor))


def _threads() -> int:
    return torch.get_num_threads()
