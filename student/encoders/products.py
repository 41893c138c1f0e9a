"""Sums, maxima and ordered products of ragged sequences, from the tables of embeddings to features, and gradients.

Both functions are the torch operator ``torch.ops.distill.products``, which supports autograd and `torch.compile`. A
backend of `student.kernels` does the work: compiled code on a CPU, and plain torch on a GPU or without compiled code.

Shapes: see `student.kernels.reference`.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from student.kernels import native, reference
from student.kernels.reference import RowGradients, Tables

NO_PADDING = -1
# Built kernels neither appear nor vanish during a run, so this is decided once at import.
IS_COMPILED = native.library() is not None


class SparseGrads(Protocol):
    """Receives the gradients of the embedding rows that a batch uses, one row per token.

    If it is given to a forward pass, the tables themselves get no gradients, which would be as large as the vocabulary.
    """

    @property
    def bigrams(self) -> "SparseGrads | None":
        """Receives the gradients of the table of bigrams, if the encoder has one."""
        ...

    def buffers(self) -> Sequence[Tensor]:
        """Returns tensors [T, X] to write to, one per table."""
        ...


def reduce(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    padding_idx: int = NO_PADDING,
    sparse_grads: SparseGrads | None = None,
    with_max: bool = False,
) -> Tensor:
    """Returns [v_1 + … + v_L, max v_t, X_1 X_2 … X_L, Y_L … Y_2 Y_1] for each sequence.

    Args:
        tables: the vectors v, and the matrices X and Y. See `student.kernels.reference.Tables`.
        ids_T: int64, all sequences end to end.
        starts_S: int64. Sequence n is ``ids_T[starts_S[n] : starts_S[n + 1]]``. An empty one has sum and maximum 0 and
            product I.
        padding_idx: a row of the tables without gradient.
        sparse_grads: receives the gradients instead of the tables.
        with_max: whether the features also contain the maxima of the vectors' numbers.

    Returns:
        features_NF, float32, F = E (+ E) + M + M, less the parts without a table.
    """
    return _products(tables, False, with_max, ids_T, starts_S, padding_idx, sparse_grads)


def scan(
    tables: Tables,
    ids_T: Tensor,
    starts_S: Tensor,
    padding_idx: int = NO_PADDING,
    sparse_grads: SparseGrads | None = None,
) -> Tensor:
    """Returns sums and products of the prefix that ends at each token, and of the suffix that begins at it.

    Position t contains [v_1 + … + v_t, X_1 … X_t] and, with a backward table, [v_t + … + v_L, Y_L … Y_t].

    Args:
        tables: see `reduce`, also for the other arguments.
        ids_T: all sequences.
        starts_S: their starts.
        padding_idx: a row without gradient.
        sparse_grads: receives the gradients.

    Returns:
        features_TP, float32, in the order of ``ids_T``.
    """
    return _products(tables, True, False, ids_T, starts_S, padding_idx, sparse_grads)


def backend(tables: Tables, ids_T: Tensor) -> ModuleType:
    """Returns the kernels for these tables: the compiled ones on a CPU, or plain torch for any device."""
    dtypes = {table.dtype for table in tables if table is not None}
    if IS_COMPILED and ids_T.device.type == "cpu" and dtypes <= native.DTYPES:
        return native
    return reference


def _products(
    tables: Tables,
    per_token: bool,
    with_max: bool,
    ids_T: Tensor,
    starts_S: Tensor,
    padding_idx: int,
    sparse_grads: SparseGrads | None,
) -> Tensor:
    given = [table for table in tables if table is not None]
    # Plain torch needs no operator of its own: autograd and the compiler can follow each step.
    if sparse_grads is None and backend(tables, ids_T) is reference:
        rows_TX = [functional.embedding(ids_T, table, padding_idx if padding_idx >= 0 else None) for table in given]
        # The rows are gathered by `embedding` first, because it can leave out the padding's gradient.
        places_T = torch.arange(len(ids_T)).to(ids_T)
        return _forward(_named(rows_TX, tables[0] is not None), per_token, with_max, places_T, starts_S)
    if sparse_grads is not None:
        return _RowProducts.apply(sparse_grads, tables, per_token, with_max, ids_T, starts_S, *given)  # type: ignore[no-any-return, no-untyped-call]
    has_vectors = tables[0] is not None
    return torch.ops.distill.products(given, has_vectors, per_token, with_max, ids_T, starts_S, padding_idx)  # type: ignore[no-any-return]


# Not `torch.library.custom_op`: that imports torch's compiler when the operator is first called, for seconds.
_LIBRARY = torch.library.Library("distill", "DEF")  # type: ignore[no-untyped-call]
# A `Tensor[]` holds no None, so absent tables are left out, and `has_vectors` marks whether the first is of vectors.
_WHERE = "Tensor[] tables, bool has_vectors, bool per_token, bool with_max, Tensor ids, Tensor starts, int padding_idx"
_LIBRARY.define(f"products({_WHERE}) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"products_backward({_WHERE}, Tensor features, Tensor grad) -> Tensor[]")  # type: ignore[no-untyped-call]


def _op(
    tables: list[Tensor],
    has_vectors: bool,
    per_token: bool,
    with_max: bool,
    ids: Tensor,
    starts: Tensor,
    padding_idx: int,
) -> Tensor:
    return _forward(_named(tables, has_vectors), per_token, with_max, ids, starts)


def _backward_op(
    tables: list[Tensor],
    has_vectors: bool,
    per_token: bool,
    with_max: bool,
    ids: Tensor,
    starts: Tensor,
    padding_idx: int,
    features: Tensor,
    grad: Tensor,
) -> list[Tensor]:
    gradients_TX = _backward(_named(tables, has_vectors), per_token, with_max, ids, starts, features, grad)
    rows = [row for row in gradients_TX if row is not None]
    # The kernels return gradients per token, and a token may occur several times in a batch.
    gradients = [torch.zeros_like(table).index_add_(0, ids, row) for table, row in zip(tables, rows, strict=True)]
    if padding_idx != NO_PADDING:
        for gradient in gradients:
            gradient[padding_idx] = 0
    return gradients


def _like_op(
    tables: list[Tensor],
    has_vectors: bool,
    per_token: bool,
    with_max: bool,
    ids: Tensor,
    starts: Tensor,
    padding_idx: int,
) -> Tensor:
    size = sum(table.shape[1] for table in tables)
    if has_vectors and with_max:
        size += tables[0].shape[1]
    # A scan of both directions stores prefix and suffix sums, so the vectors count twice.
    if per_token and has_vectors and len(tables) == len(("vectors", "forward", "backward")):
        size += tables[0].shape[1]
    return tables[0].new_empty(ids.shape[0] if per_token else starts.shape[0] - 1, size, dtype=torch.float32)


def _like_backward_op(tables: list[Tensor], *_: object) -> list[Tensor]:
    return [torch.empty_like(table) for table in tables]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tables, ctx.has_vectors, ctx.per_token, ctx.with_max, ids_T, starts_S, ctx.padding_idx = inputs
    # The backward kernel of a scan reads the prefix products again instead of computing them a second time.
    ctx.save_for_backward(*tables, ids_T, starts_S, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *tables, ids_T, starts_S, features = ctx.saved_tensors
    where = (list(tables), ctx.has_vectors, ctx.per_token, ctx.with_max, ids_T, starts_S, ctx.padding_idx)
    return torch.ops.distill.products_backward(*where, features, grad), *(None,) * (len(where) - 1)


# A fake implementation gives the compiler shapes without running the kernel.
for _name, _function, _like in (
    ("products", _op, _like_op),
    ("products_backward", _backward_op, _like_backward_op),
):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"distill::{_name}", _like, lib=_LIBRARY)
torch.library.register_autograd("distill::products", _gradients, setup_context=_save, lib=_LIBRARY)


class _RowProducts(torch.autograd.Function):
    """Products whose gradients go to ``sparse_grads``.

    The tables are arguments twice: autograd sees only tensors that are arguments by themselves, and without one that
    needs gradients it would not call `backward` at all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sparse_grads: SparseGrads,
        tables: Tables,
        per_token: bool,
        with_max: bool,
        ids_T: Tensor,
        starts_S: Tensor,
        *_: Tensor,
    ) -> Tensor:
        features = _forward(tables, per_token, with_max, ids_T, starts_S)
        ctx.rest = sparse_grads, tables, per_token, with_max, ids_T, starts_S
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        rows, tables, per_token, with_max, ids_T, starts_S = ctx.rest
        (features,) = ctx.saved_tensors
        out = _named(rows.buffers(), tables[0] is not None)
        _backward(tables, per_token, with_max, ids_T, starts_S, features, grad, out)
        return (None,) * len(ctx.needs_input_grad)


def _named(tables: Sequence[Tensor], has_vectors: bool) -> Tables:
    vectors, *matrices = tables if has_vectors else (None, *tables)
    forward, backward = (*matrices, None, None)[:2]
    return vectors, forward, backward


def _forward(tables: Tables, per_token: bool, with_max: bool, ids_T: Tensor, starts_S: Tensor) -> Tensor:
    kernels = backend(tables, ids_T)
    if per_token:
        return kernels.scan(tables, ids_T, starts_S)  # type: ignore[no-any-return]
    return kernels.reduce(tables, ids_T, starts_S, with_max=with_max)  # type: ignore[no-any-return]


def _backward(
    tables: Tables,
    per_token: bool,
    with_max: bool,
    ids_T: Tensor,
    starts_S: Tensor,
    features: Tensor,
    grad: Tensor,
    out: RowGradients | None = None,
) -> RowGradients:
    # Autograd may pass expanded gradients with a stride of 0, which the kernels do not read.
    kernels, grad = backend(tables, ids_T), grad.contiguous()
    options = {} if out is None else {"out": out}
    if per_token:
        return kernels.scan_backward(tables, ids_T, starts_S, features, grad, **options)  # type: ignore[no-any-return]
    return kernels.reduce_backward(tables, ids_T, starts_S, grad, with_max=with_max, **options)  # type: ignore[no-any-return]


def embedding_rows(
    weight_VX: Tensor, ids_T: Tensor, padding_idx: int, sparse_grads: SparseGrads | None = None
) -> Tensor:
    """Returns the rows of these ids, float32 [T, X].

    Args:
        weight_VX: the table. With ``sparse_grads``, it must be the only one whose gradients they receive.
        ids_T: int64.
        padding_idx: a row without gradient. Negative: no such row.
        sparse_grads: receives the gradients. See `SparseGrads`.
    """
    if sparse_grads is None:
        return functional.embedding(ids_T, weight_VX, padding_idx if padding_idx >= 0 else None)
    return _RowsWithSparseGrads.apply(sparse_grads, ids_T, weight_VX)  # type: ignore[no-any-return, no-untyped-call]


class _RowsWithSparseGrads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sparse_grads: SparseGrads, ids_T: Tensor, weight_VX: Tensor) -> Tensor:
        # The table is an argument only so that autograd calls the backward pass. Its gradient goes to the buffer.
        ctx.sparse_grads = sparse_grads
        return functional.embedding(ids_T, weight_VX)

    @staticmethod
    def backward(ctx: Any, grad_TX: Tensor) -> tuple[None, None, None]:
        (buffer_TX,) = ctx.sparse_grads.buffers()
        buffer_TX.copy_(grad_TX)
        return None, None, None
