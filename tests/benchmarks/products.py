"""Ordered products of the default student (20 x 20 both ways, 400 numbers summed) by the kernels and by torch.

The first row of a table, to which the others are compared, is torch at its best: what it gathers goes to a kept tensor.
A new one costs a page fault every 4 KB, with glibc's settings each time it is large; the second row of the first table
pays them.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from student.kernels import native
from student.kernels.reference import prefix_products
from student.model.tables import put_side_by_side

VOCABULARY, SEQUENCES, SIDE, VECTOR = 30522, 256, 20, 400
UNIFORM, LONGEST = 64, 60
Alternatives = dict[str, Callable[[], object]]
Whole = tuple[Tensor, Tensor, Tensor]


def uniform(threads: int) -> Alternatives:
    """256 sequences of 64 random tokens: hardly a row is in a cache."""
    tables, lengths = _tables(), [UNIFORM] * SEQUENCES
    ids_T, starts_S = _tokens(lengths)
    ids_BL, kept_BLX = ids_T.view(SEQUENCES, UNIFORM), _kept(SEQUENCES * UNIFORM)
    return _on(
        threads,
        {
            "torch, loop of bmm": lambda: _loop(tables, ids_BL, kept_BLX),
            "the same, new tensors": lambda: _loop(tables, ids_BL, None),
            **_reductions(tables, ids_T, starts_S),
        },
    )


def realistic(threads: int) -> Alternatives:
    """256 sequences of 13 tokens on average, of a log-normal distribution as sentences have it, 60 at most."""
    tables, lengths = _tables(), _lengths()
    ids_T, starts_S = _tokens(lengths)
    order = np.argsort(lengths, kind="stable")
    sequences = [ids_T[start:stop] for start, stop in itertools.pairwise(starts_S.tolist())]
    batches = [
        torch.nn.utils.rnn.pad_sequence([sequences[n] for n in part], batch_first=True)
        for part in order.reshape(-1, 32)
    ]
    kept_BLX = _kept(32 * LONGEST)
    return _on(
        threads,
        {
            "torch, sorted batches of 32": lambda: [_loop(tables, ids_BL, kept_BLX) for ids_BL in batches],
            **_reductions(tables, ids_T, starts_S),
        },
    )


def per_token(threads: int) -> Alternatives:
    """Prefix and suffix products and sums of the realistic sequences, forward and backward; torch is given the rows."""
    tables, lengths = _tables(), _lengths()
    ids_T, starts_S = _tokens(lengths)
    rows_NLX = [torch.zeros(SEQUENCES, max(lengths), table.shape[1]) for table in tables]
    for n, (start, stop) in enumerate(itertools.pairwise(starts_S.tolist())):
        for rows, table in zip(rows_NLX, tables, strict=True):
            rows[n, : stop - start] = table[ids_T[start:stop]]
    leaves = [rows.requires_grad_() for rows in rows_NLX]
    grad_TP = torch.randn(len(ids_T), 2 * (VECTOR + SIDE**2))
    features_TP, kept = torch.empty_like(grad_TP), tuple(torch.empty(len(ids_T), table.shape[1]) for table in tables)

    def sequential() -> object:
        vectors, *matrices = leaves
        forward, backward = (m.view(*m.shape[:2], SIDE, SIDE) for m in matrices)
        features = [
            vectors.cumsum(1),
            prefix_products(forward),
            vectors.flip(1).cumsum(1).flip(1),
            prefix_products(backward.flip(1)).flip(1),
        ]
        return torch.autograd.grad(features, leaves, [part.detach() for part in features])

    def kernels() -> object:
        native.scan(tables, ids_T, starts_S, features_TP)
        return native.scan_backward(tables, ids_T, starts_S, features_TP, grad_TP, (kept[0], kept[1], kept[2]))

    return _on(threads, {"torch, one product after the other": sequential, "compiled": kernels})


def _reductions(tables: Whole, ids_T: Tensor, starts_S: Tensor) -> Alternatives:
    small = _small(tables)
    features_NF, grad_NF = (torch.randn(len(starts_S) - 1, VECTOR + 2 * SIDE**2) for _ in range(2))
    kept = tuple(torch.empty(len(ids_T), table.shape[1]) for table in tables)
    return {
        "compiled": lambda: native.reduce(tables, ids_T, starts_S, features_NF),
        "compiled, bfloat16 tables": lambda: native.reduce(small, ids_T, starts_S, features_NF),
        "compiled, backward alone": lambda: native.reduce_backward(
            tables, ids_T, starts_S, grad_NF, (kept[0], kept[1], kept[2])
        ),
    }


def _loop(tables: Whole, ids_BL: Tensor, kept_BLX: Whole | None) -> Tensor:
    """Padded rows, and a bmm for each token and direction."""
    flat, sizes = ids_BL.flatten(), ids_BL.shape
    rows = [
        (table[flat] if kept_BLX is None else torch.index_select(table, 0, flat, out=kept_BLX[k][: len(flat)]))
        for k, table in enumerate(tables)
    ]
    forward, backward = (row.view(*sizes, SIDE, SIDE).unbind(1) for row in rows[1:])
    there, back = forward[0], backward[-1]
    for matrix in forward[1:]:
        there = torch.bmm(there, matrix)
    for matrix in backward[-2::-1]:
        back = torch.bmm(back, matrix)
    return torch.cat([rows[0].view(*sizes, VECTOR).sum(1), there.flatten(1), back.flatten(1)], dim=1)


def _on(threads: int, alternatives: Alternatives) -> Alternatives:
    def on(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                return call()
            finally:
                torch.set_num_threads(before)

        return run

    return {name: on(call) for name, call in alternatives.items()}


def _tables() -> Whole:
    generator = torch.Generator().manual_seed(0)
    sizes = (VECTOR, SIDE**2, SIDE**2)
    vectors, forward, backward = (0.01 * torch.randn(VOCABULARY, size, generator=generator) for size in sizes)
    tables = vectors, forward + torch.eye(SIDE).flatten(), backward + torch.eye(SIDE).flatten()
    put_side_by_side(tables)
    return tables


def _small(tables: Whole) -> Whole:
    vectors, forward, backward = tables
    identity = torch.eye(SIDE).flatten()
    small = vectors.bfloat16(), (forward - identity).bfloat16(), (backward - identity).bfloat16()
    put_side_by_side(small)
    return small


def _tokens(lengths: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids_T = torch.randint(VOCABULARY, (sum(lengths),), generator=generator)
    return ids_T, torch.tensor([0, *itertools.accumulate(lengths)])


def _lengths() -> list[int]:
    drawn = np.random.default_rng(0).lognormal(2.4, 0.6, SEQUENCES)
    return [int(length) for length in drawn.clip(1, LONGEST)]


def _kept(tokens: int) -> Whole:
    return torch.empty(tokens, VECTOR), torch.empty(tokens, SIDE**2), torch.empty(tokens, SIDE**2)
