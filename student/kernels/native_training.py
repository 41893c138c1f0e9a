"""C++ code only for training: Adam on rows (``cpp/row_adam.cpp``), and the loss (``cpp/loss.cpp``).

Adam is for float32 on a CPU, with the functions of `lazy_adam`. The loss has few numbers, so calls cost the
most: it is a single call, which also computes the gradient.

Shapes: T tokens, R distinct rows, V rows, X numbers of a row, B batch, C logits.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from student.kernels.lazy_adam import LazyAdamTerms, Rates, RowState
from student.kernels.native import kernels, library, pointer


# The order of fields must match the structures in `cpp/row_adam.cpp`: ctypes passes bytes, not names.
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


class _LazyTerms(ctypes.Structure):
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
        starts_S: the starts of each row's tokens, R + 1 numbers.
        tokens_T: the tokens, by row.
    """

    rows_R: Tensor
    starts_S: Tensor
    tokens_T: Tensor


KernelTables = ctypes.Array[_Table]


def as_kernel_tables(states: Sequence[RowState]) -> KernelTables:
    """Returns the states' addresses for the other functions. They are valid as long as the tensors are not moved."""
    tables = [
        _Table(
            *map(pointer, (state.value_VX, state.m_VX, state.v_VX, state.gradient_TX)),
            *(state.value_VX.shape[1], state.value_VX.stride(0), state.m_VX.stride(0)),
        )
        for state in states
    ]
    return (_Table * len(tables))(*tables)


def group(ids_T: Tensor, num_rows: int, padding_idx: int) -> Groups:
    """Groups tokens by row, without padding."""
    count = ids_T.shape[0]
    # All tokens may be distinct, so the buffers have room for the worst case and are cut afterwards.
    rows_T, starts_T, tokens_T = torch.empty_like(ids_T), ids_T.new_empty(count + 1), torch.empty_like(ids_T)
    groups = map(pointer, (rows_T, starts_T, tokens_T))
    distinct = kernels().group_rows(pointer(ids_T), count, num_rows, padding_idx, *groups)
    # C++ raises no Python errors: a negative result encodes the position of the first wrong id.
    if distinct < 0:
        raise IndexError(f"token {-1 - distinct}: id {int(ids_T[-1 - distinct])} is not a row of a table of {num_rows}")
    return Groups(rows_T[:distinct], starts_T[: distinct + 1], tokens_T)


def sum_gradients(tables: KernelTables, groups: Groups) -> float:
    """Adds up the gradients of each row's tokens in the gradient of its first token. Returns the sum of all squares."""
    places = (pointer(groups.starts_S), pointer(groups.tokens_T), groups.rows_R.shape[0])
    return float(kernels().sum_gradients(tables, len(tables), *places, torch.get_num_threads()))


def catch_up(tables: KernelTables, rows_R: Tensor, lazy: LazyAdamTerms, eps: float) -> None:
    """Updates the values of distinct rows to those of dense Adam after the last step."""
    rows = (pointer(rows_R), rows_R.shape[0])
    kernels().catch_up(tables, len(tables), *rows, ctypes.byref(_terms(lazy)), eps, torch.get_num_threads())


def step(tables: KernelTables, groups: Groups, lazy: LazyAdamTerms, rates: Rates) -> None:
    """Takes one step of AdamW on rows that are up to date, with the sums of their gradients."""
    # The C++ code writes the terms of the next step, so the arrays must have room before it gets their addresses.
    lazy.reserve_step()
    rows = (pointer(groups.rows_R), groups.rows_R.shape[0], pointer(groups.starts_S), pointer(groups.tokens_T))
    terms = ctypes.byref(_terms(lazy))
    kernels().adam_step(tables, len(tables), *rows, terms, *rates, torch.get_num_threads())
    # The kernel has updated the sums already, so `record_step` would count the step twice.
    lazy.step += 1


def squares(gradients: Sequence[Tensor]) -> float:
    """Returns the sum of the squares of all gradients."""
    # Only gradient and size are read here, so the other addresses stay null.
    arrays = [_Parameter(None, None, None, part.data_ptr(), part.numel()) for part in gradients]
    return float(kernels().dense_squares((_Parameter * len(arrays))(*arrays), len(arrays), torch.get_num_threads()))


def dense_step(
    arrays: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    step: int,
    betas: tuple[float, float],
    rates: Rates,
) -> None:
    """Takes step number ``step`` of AdamW on whole parameters: contiguous value, moments and gradient of each."""
    parameters = [_Parameter(*map(pointer, four), four[0].numel()) for four in arrays]
    numbers = (step, *betas, *rates, torch.get_num_threads())
    kernels().dense_adam((_Parameter * len(parameters))(*parameters), len(parameters), *numbers)


def _terms(lazy: LazyAdamTerms) -> _LazyTerms:
    arrays = (lazy.large_S, lazy.small_S, lazy.decay_S, lazy.large_powers, lazy.small_powers)
    return _LazyTerms(
        *map(pointer, (lazy.value_step_V, lazy.moment_step_V)),
        # Numpy arrays that `_reserve` replaces get new addresses, so this structure is made for every call.
        *(array.ctypes.data for array in arrays),
        *(len(lazy.small_powers), lazy.first, lazy.step, lazy.beta1, lazy.beta2),
    )


def can_do(logits_BC: Tensor) -> bool:
    """Whether these logits are supported here."""
    return library() is not None and logits_BC.dtype == torch.float32 and logits_BC.device.type == "cpu"


def distillation_loss(
    logits_BC: Tensor,
    teacher_BC: Tensor,
    gold_B: Tensor,
    weight_B: Tensor | None,
    alpha: float,
    temperature: float,
    squared: bool,
) -> Tensor:
    """Returns the loss of `student.losses.logit_losses`, a scalar. ``squared`` means its soft loss ``mse``."""
    settings = (alpha, temperature, squared)
    return _Loss.apply(logits_BC, teacher_BC, gold_B, weight_B, settings)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(torch.autograd.Function):
    """The gradient is computed with the loss, and stored for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_BC: Tensor,
        teacher_BC: Tensor,
        gold_B: Tensor,
        weight_B: Tensor | None,
        settings: tuple[float, float, bool],
    ) -> Tensor:
        num_rows, num_classes = logits_BC.shape
        if teacher_BC.shape != logits_BC.shape or gold_B.shape != (num_rows,):
            raise ValueError(f"logits {tuple(logits_BC.shape)}, teacher {tuple(teacher_BC.shape)}, gold {gold_B.shape}")
        # Torch's cross-entropy checks this itself, but the C++ code would read beyond the row.
        if int(gold_B.amax()) >= num_classes:
            raise IndexError(f"a gold label is not among the {num_classes} classes")
        alpha, temperature, squared = settings
        # The kernel assumes rows without gaps, and `empty_like` would copy the strides of a transposed tensor.
        gradient_BC = torch.empty_like(logits_BC, memory_format=torch.contiguous_format)
        arrays = (
            logits_BC.contiguous(),
            teacher_BC.float().contiguous(),
            gold_B.long().contiguous(),
            None if weight_B is None else weight_B.float().contiguous(),
        )
        sizes = (num_rows, num_classes, alpha, temperature, squared)
        mean = kernels().distillation_loss(*map(pointer, arrays), *sizes, pointer(gradient_BC))
        ctx.save_for_backward(gradient_BC)
        return torch.tensor(mean, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_BC,) = ctx.saved_tensors
        return gradient_BC * grad, None, None, None, None
