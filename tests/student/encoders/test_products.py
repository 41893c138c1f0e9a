"""The operator that autograd and `torch.compile` see, and the way around it that hands over gradients by token."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from student.encoders import products
from student.kernels import native, reference
from student.kernels.reference import Tables

V, E, SIDE, PAD = 9, 5, 4, 0
PARTS = st.sampled_from([(1, 1, 1), (0, 1, 1), (1, 1, 0), (1, 0, 0), (0, 1, 0)])
SENTENCES = st.lists(st.lists(st.integers(0, V - 1), max_size=6), min_size=1, max_size=4)
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "reduce": (products.reduce, reference.reduce),
    "reduce with maxima": (partial(products.reduce, with_max=True), partial(reference.reduce, with_max=True)),
    "scan": (products.scan, reference.scan),
}


class Taker:
    """Takes gradients as the optimizer does, of a batch and into memory that is longer."""

    def __init__(self, tables: Tables, num_tokens: int) -> None:
        there = [table for table in tables if table is not None]
        self.kept = [torch.full((num_tokens, table.shape[1]), torch.nan, dtype=table.dtype) for table in there]

    def buffers(self) -> list[Tensor]:
        return self.kept


def make(parts: tuple[int, int, int], sentences: list[list[int]], dtype: torch.dtype) -> tuple[Tables, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(sentences))
    sizes = (E, SIDE * SIDE, SIDE * SIDE)
    tables = [
        (0.5 * torch.randn(V, size, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()
        if part
        else None
        for part, size in zip(parts, sizes, strict=True)
    ]
    starts = [sum(map(len, sentences[:n])) for n in range(len(sentences) + 1)]
    ids = [token for sentence in sentences for token in sentence]
    return (tables[0], tables[1], tables[2]), torch.tensor(ids, dtype=torch.int64), torch.tensor(starts)


def whole(tables: Tables) -> list[Tensor]:
    return [table for table in tables if table is not None]


@settings(max_examples=60, deadline=None)
@given(
    parts=PARTS,
    sentences=SENTENCES,
    name=st.sampled_from(sorted(FUNCTIONS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_values_and_gradients_are_those_of_the_reference(
    parts: tuple[int, int, int], sentences: list[list[int]], name: str, dtype: torch.dtype
) -> None:
    function, plain = FUNCTIONS[name]
    tables, ids_T, starts_S = make(parts, sentences, dtype)
    exact = tuple(None if table is None else table.detach().double().requires_grad_() for table in tables)
    features, expected = function(tables, ids_T, starts_S, PAD), plain(exact, ids_T, starts_S)
    torch.testing.assert_close(features.double(), expected, rtol=1e-4, atol=1e-5)
    weight = torch.linspace(-1, 1, features.numel(), dtype=torch.float64).view(features.shape)
    gradients = torch.autograd.grad(features, whole(tables), weight.to(dtype))
    wanted = torch.autograd.grad(expected, whole(exact), weight)  # type: ignore[arg-type]
    taker = Taker(tables, len(ids_T) + 3)
    torch.testing.assert_close(function(tables, ids_T, starts_S, PAD, taker), features)
    function(tables, ids_T, starts_S, PAD, taker).backward(weight.to(dtype))  # type: ignore[no-untyped-call]
    for table, gradient, other, kept in zip(whole(tables), gradients, wanted, taker.kept, strict=True):
        summed = torch.zeros_like(gradient).index_add_(0, ids_T, kept[: len(ids_T)])
        torch.testing.assert_close(summed.double(), other, rtol=1e-4, atol=1e-4)
        assert not gradient[PAD].any()
        torch.testing.assert_close(gradient[1:].double(), other[1:], rtol=1e-4, atol=1e-4)
        assert table.grad is None


@pytest.mark.skipif(native.library() is None, reason="nothing is built")
@pytest.mark.parametrize(("per_token", "with_max"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("parts", [(1, 1, 1), (0, 1, 1), (1, 1, 0)])
def test_the_operator_keeps_to_torchs_rules(parts: tuple[int, int, int], per_token: bool, with_max: bool) -> None:
    tables, ids_T, starts_S = make(parts, [[1, 2, 3], [], [4, 1]], torch.float32)
    arguments = (whole(tables), bool(parts[0]), per_token, with_max, ids_T, starts_S, PAD)
    found = torch.library.opcheck(torch.ops.distill.products.default, arguments)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.skipif(native.library() is None, reason="nothing is built")
def test_torch_compile_sees_the_operator_as_one() -> None:
    tables, ids_T, starts_S = make((1, 1, 1), [[1, 2, 3], [], [4, 1]], torch.float32)

    def loss(*matrices: Tensor) -> Tensor:
        tables = (matrices[0], matrices[1], matrices[2])
        return products.reduce(tables, ids_T, starts_S, PAD, with_max=True).square().sum()

    plain = torch.autograd.grad(loss(*whole(tables)), whole(tables))
    through = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for a, b in zip(torch.autograd.grad(through(*whole(tables)), whole(tables)), plain, strict=True):
        torch.testing.assert_close(a, b)


def test_the_compiled_kernels_are_for_cpus_and_plain_torch_for_every_other_device() -> None:
    ids_T = torch.zeros(3, dtype=torch.int64)
    for dtype in (torch.float32, torch.float16):
        table_VE = torch.zeros(V, E, dtype=dtype)
        expected = reference if native.library() is None else native
        assert products.backend((table_VE, None, None), ids_T) is expected
        on_device = table_VE.to("meta")
        assert products.backend((on_device, None, None), ids_T.to("meta")) is reference
