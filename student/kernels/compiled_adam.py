"""Adam on rows in C++ (``cpp/row_adam.cpp``): float32 on a CPU. The functions are those of `reference_adam`.

Shapes: T tokens, R distinct rows, V rows, X numbers of a row.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from student.kernels.arguments import pointer
from student.kernels.compiled import library
from student.kernels.missed_moves import MissedMoves
from student.kernels.reference_adam import Rates, RowState


class _Table(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "ms", "vs", "gradients")),
        *((name, ctypes.c_int64) for name in ("width", "stride", "moments_stride")),
    )


class _Parameter(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("value", "m", "v", "gradient")),
        ("size", ctypes.c_int64),
    )


class _Missed(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("row", "moments", "large", "small", "kept")),
        *((name, ctypes.c_void_p) for name in ("large_powers", "small_powers")),
        *((name, ctypes.c_int64) for name in ("powers", "first", "step")),
        *((name, ctypes.c_double) for name in ("beta1", "beta2")),
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


KernelTables = ctypes.Array[_Table]


def as_kernel_tables(states: Sequence[RowState]) -> KernelTables:
    """Returns the states' addresses for the other functions; they hold as long as the tensors stay where they are."""
    tables = [
        _Table(
            *map(pointer, (state.value_VX, state.m_VX, state.v_VX, state.gradient_TX)),
            *(state.value_VX.shape[1], state.value_VX.stride(0), state.m_VX.stride(0)),
        )
        for state in states
    ]
    return (_Table * len(tables))(*tables)


def group(ids_T: Tensor, num_rows: int, padding_idx: int) -> Groups:
    """Groups tokens by row, those of the padding left out."""
    count = ids_T.shape[0]
    rows_T, starts_T, tokens_T = torch.empty_like(ids_T), ids_T.new_empty(count + 1), torch.empty_like(ids_T)
    groups = map(pointer, (rows_T, starts_T, tokens_T))
    distinct = _kernels().group_rows(pointer(ids_T), count, num_rows, padding_idx, *groups)
    if distinct < 0:
        raise IndexError(f"token {-1 - distinct}: id {int(ids_T[-1 - distinct])} is not a row of a table of {num_rows}")
    return Groups(rows_T[:distinct], starts_T[: distinct + 1], tokens_T)


def sum_gradients(tables: KernelTables, groups: Groups) -> float:
    """Adds up the gradients of each row's tokens, in that of its first token; returns the sum of all squares."""
    places = (pointer(groups.starts_S), pointer(groups.tokens_T), groups.rows_R.shape[0])
    return float(_kernels().sum_gradients(tables, len(tables), *places, torch.get_num_threads()))


def catch_up(tables: KernelTables, rows_R: Tensor, missed: MissedMoves, eps: float) -> None:
    """Brings the values of rows (all different) to where dense Adam would have them after the last step."""
    rows = (pointer(rows_R), rows_R.shape[0])
    _kernels().catch_up(tables, len(tables), *rows, ctypes.byref(_missed(missed)), eps, torch.get_num_threads())


def step(tables: KernelTables, groups: Groups, missed: MissedMoves, rates: Rates) -> None:
    """One step of AdamW on rows that are up to date, with the sums of their gradients."""
    missed.make_room()
    rows = (pointer(groups.rows_R), groups.rows_R.shape[0], pointer(groups.starts_S), pointer(groups.tokens_T))
    missed_moves = ctypes.byref(_missed(missed))
    _kernels().adam_step(tables, len(tables), *rows, missed_moves, *rates, torch.get_num_threads())
    missed.step += 1


def squares(gradients: Sequence[Tensor]) -> float:
    """The sum of the squares of all gradients."""
    arrays = [_Parameter(None, None, None, part.data_ptr(), part.numel()) for part in gradients]
    return float(_kernels().dense_squares((_Parameter * len(arrays))(*arrays), len(arrays), torch.get_num_threads()))


def dense_step(
    arrays: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    step: int,
    betas: tuple[float, float],
    rates: Rates,
) -> None:
    """Step number ``step`` of AdamW on whole parameters: value, both moments and gradient of each, contiguous."""
    parameters = [_Parameter(*map(pointer, four), four[0].numel()) for four in arrays]
    numbers = (step, *betas, *rates, torch.get_num_threads())
    _kernels().dense_adam((_Parameter * len(parameters))(*parameters), len(parameters), *numbers)


def _kernels() -> ctypes.CDLL:
    kernels = library()
    assert kernels is not None, "whoever calls has looked"
    return kernels


def _missed(missed: MissedMoves) -> _Missed:
    arrays = (missed.large_S, missed.small_S, missed.kept_S, missed.large_powers, missed.small_powers)
    return _Missed(
        *map(pointer, (missed.row_V, missed.moments_V)),
        *(array.ctypes.data for array in arrays),
        *(len(missed.small_powers), missed.first, missed.step, missed.beta1, missed.beta2),
    )
