"""The C++ kernels against the reference in float64, for every level of instructions that this machine has."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from student.kernels import native, reference
from student.kernels.reference import Tables
from student.model.tables import put_side_by_side
from tests.helpers.messages import naming

VOCABULARY = 11
PARTS = [(True, True, True), (False, True, True), (True, True, False), (True, False, False), (False, True, False)]

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels are not built")


def made(
    lengths: list[int],
    side: int,
    vector_size: int,
    parts: tuple[bool, ...] = PARTS[0],
    seed: int = 0,
    is_side_by_side: bool = False,
    is_coarse: bool = False,
) -> tuple[Tables, Tensor, Tensor]:
    """Tables whose products neither vanish nor explode, with ids and starts of sequences of these lengths.

    ``is_coarse``: the vectors' numbers are few and none is positive, so that many tokens hold the same largest one.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = 0.3 / side**0.5 * torch.randn(2, VOCABULARY, side * side, generator=generator)
    forward, backward = (torch.eye(side).flatten() + noise).unbind()
    vectors = torch.randn(VOCABULARY, vector_size, generator=generator)
    vectors = -vectors.abs().round() if is_coarse else vectors
    tables = [table if part else None for table, part in zip((vectors, forward, backward), parts, strict=True)]
    if is_side_by_side:
        put_side_by_side([table for table in tables if table is not None])
    ids_T = torch.randint(VOCABULARY, (sum(lengths),), generator=generator)
    return (tables[0], tables[1], tables[2]), ids_T, torch.tensor([0, *itertools.accumulate(lengths)])


def exact_rows(tables: Tables, ids_T: Tensor) -> Tables:
    """A table of the tokens' rows in float64, so that the gradient of a table is that of every token."""
    vectors, forward, backward = (None if table is None else table[ids_T].double() for table in tables)
    return vectors, forward, backward


def assert_near(ours: Tensor, exact: Tensor) -> None:
    assert ours.shape == exact.shape
    assert (ours.double() - exact).norm() <= 1e-5 * exact.norm()


cases = st.builds(
    made,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    side=st.sampled_from([1, 3, 7, 20, 28, 33, 64]) | st.integers(1, 64),
    vector_size=st.sampled_from([1, 7, 400]),
    parts=st.sampled_from(PARTS),
    seed=st.integers(0, 9),
    is_side_by_side=st.booleans(),
    is_coarse=st.booleans(),
)


@given(case=cases, with_max=st.booleans())
@settings(max_examples=40)
def test_features_equal_the_reference(level: str, case: tuple[Tables, Tensor, Tensor], with_max: bool) -> None:
    tables, ids_T, starts_S = case
    rows, places_T = exact_rows(tables, ids_T), torch.arange(len(ids_T))
    features_NF = native.reduce(tables, ids_T, starts_S, with_max=with_max)
    assert_near(features_NF, reference.reduce(rows, places_T, starts_S, with_max))
    assert_near(native.scan(tables, ids_T, starts_S), reference.scan(rows, places_T, starts_S))


@given(case=cases, seed=st.integers(0, 9), with_max=st.booleans())
@settings(max_examples=40)
def test_gradients_equal_those_of_autograd(
    level: str, case: tuple[Tables, Tensor, Tensor], seed: int, with_max: bool
) -> None:
    tables, ids_T, starts_S = case
    generator = torch.Generator().manual_seed(seed)
    rows, places_T = exact_rows(tables, ids_T), torch.arange(len(ids_T))
    leaves = [row.requires_grad_() for row in rows if row is not None]

    features_NF = reference.reduce(rows, places_T, starts_S, with_max)
    grad_NF = torch.randn(features_NF.shape, generator=generator)
    ours = native.reduce_backward(tables, ids_T, starts_S, grad_NF, with_max=with_max)
    assert [grad is None for grad in ours] == [table is None for table in tables]
    exact = torch.autograd.grad(features_NF, leaves, grad_NF.double())
    for our, its in zip((grad for grad in ours if grad is not None), exact, strict=True):
        assert_near(our, its)

    features_TP = reference.scan(rows, places_T, starts_S)
    grad_TP = torch.randn(features_TP.shape, generator=generator)
    ours = native.scan_backward(tables, ids_T, starts_S, native.scan(tables, ids_T, starts_S), grad_TP)
    assert [grad is None for grad in ours] == [table is None for table in tables]
    exact = torch.autograd.grad(features_TP, leaves, grad_TP.double())
    for our, its in zip((grad for grad in ours if grad is not None), exact, strict=True):
        assert_near(our, its)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("side", [3, 16, 20, 28])
def test_small_tables_are_added_to_the_neutral_row(level: str, side: int, dtype: torch.dtype) -> None:
    (vectors, forward, backward), ids_T, starts_S = made([5, 0, 1, 20], side, 31)
    assert vectors is not None
    assert forward is not None
    assert backward is not None
    identity = torch.eye(side).flatten()
    small = (vectors.to(dtype), (forward - identity).to(dtype), (backward - identity).to(dtype))
    whole = (small[0].double(), small[1].double() + identity, small[2].double() + identity)
    for with_max in (False, True):
        features_NF = native.reduce(small, ids_T, starts_S, with_max=with_max)
        assert_near(features_NF, reference.reduce(whole, ids_T, starts_S, with_max))
    assert_near(native.scan(small, ids_T, starts_S), reference.scan(whole, ids_T, starts_S))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 16, 64])
def test_every_small_number_is_read_as_what_it_is(level: str, width: int, dtype: torch.dtype) -> None:
    table_VE = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).view(-1, width)
    rows = len(table_VE)
    sums_NE = native.reduce((table_VE, None, None), torch.arange(rows), torch.arange(rows + 1))
    torch.testing.assert_close(sums_NE, table_VE.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 33])
def test_maxima_and_their_gradient_by_hand(level: str, size: int) -> None:
    vectors = torch.tensor([[-1.0], [-5.0], [-1.0], [-torch.inf]]).expand(-1, size).contiguous()
    ids_T, starts_S = torch.tensor([1, 0, 2, 3]), torch.tensor([0, 3, 3, 4])
    features_NF = native.reduce((vectors, None, None), ids_T, starts_S, with_max=True)
    expected = torch.tensor([[-7.0, -1.0], [0.0, 0.0], [-torch.inf, -torch.inf]])
    assert torch.equal(features_NF, expected.repeat_interleave(size, dim=1))
    grad_NF = torch.tensor([[100.0, 10.0], [1.0, 1.0], [5.0, 7.0]]).repeat_interleave(size, dim=1)
    gradient, *_ = native.reduce_backward((vectors, None, None), ids_T, starts_S, grad_NF, with_max=True)
    assert gradient is not None
    assert torch.equal(gradient, torch.tensor([[100.0], [110.0], [100.0], [12.0]]).expand(-1, size))


def test_maxima_without_vectors_are_none(level: str) -> None:
    tables, ids_T, starts_S = made([3, 0, 2], 20, 5, parts=(False, True, True))
    features_NF = native.reduce(tables, ids_T, starts_S)
    assert torch.equal(native.reduce(tables, ids_T, starts_S, with_max=True), features_NF)


def test_nothing_read_is_a_sum_of_zero_and_the_identity(level: str) -> None:
    tables, ids_T, starts_S = made([0, 0], 20, 5)
    identity = torch.eye(20).flatten()
    expected = torch.cat([torch.zeros(5), identity, identity]).expand(2, -1)
    assert torch.equal(native.reduce(tables, ids_T, starts_S), expected)
    assert native.scan(tables, ids_T, starts_S).shape == (0, 5 + 400 + 5 + 400)
    assert native.reduce(tables, ids_T, starts_S[:1]).shape == (0, 5 + 400 + 400)
    gradients = native.reduce_backward(tables, ids_T, starts_S, expected.contiguous())
    assert [None if gradient is None else gradient.shape for gradient in gradients] == [(0, 5), (0, 400), (0, 400)]


@pytest.mark.parametrize("side", [7, 20, 28])
def test_results_do_not_depend_on_threads_and_batch(level: str, side: int, threads: None) -> None:
    tables, ids_T, starts_S = made([30, 0, 1, 64, 9, 17, 40], side, 7)
    grad_NF = torch.randn(7, 14 + 2 * side**2)
    grad_TP = torch.randn(len(ids_T), 14 + 2 * side**2)

    def everything(ids_T: Tensor, starts_S: Tensor, grad_NF: Tensor, grad_TP: Tensor) -> list[Tensor]:
        features_TP = native.scan(tables, ids_T, starts_S)
        results = [
            native.reduce(tables, ids_T, starts_S, with_max=True),
            features_TP,
            *native.reduce_backward(tables, ids_T, starts_S, grad_NF, with_max=True),
            *native.scan_backward(tables, ids_T, starts_S, features_TP, grad_TP),
        ]
        return [result for result in results if result is not None]

    torch.set_num_threads(1)
    first = everything(ids_T, starts_S, grad_NF, grad_TP)
    for number in (2, 3, 16):
        torch.set_num_threads(number)
        again = everything(ids_T, starts_S, grad_NF, grad_TP)
        assert all(torch.equal(*pair) for pair in zip(again, first, strict=True))
    alone = [
        everything(ids_T[start:stop], torch.tensor([0, stop - start]), grad_NF[n : n + 1], grad_TP[start:stop])
        for n, (start, stop) in enumerate(itertools.pairwise(starts_S.tolist()))
    ]
    assert all(torch.equal(torch.cat(parts), whole) for *parts, whole in zip(*alone, first, strict=True))


@pytest.mark.parametrize("with_max", [False, True])
def test_gradients_past_the_caches_are_the_same(level: str, with_max: bool) -> None:
    tables, ids_T, starts_S = made([70] * 100, 20, 400)
    grad_NF = torch.randn(100, 1200 + 400 * with_max)
    streamed = native.reduce_backward(tables, ids_T, starts_S, grad_NF, with_max=with_max)
    for whole in streamed:
        assert whole is not None
        assert whole.nbytes > native.LAST_CACHE / 3
    pieces = [
        native.reduce_backward(
            tables, ids_T[70 * n : 70 * (n + 10)], starts_S[:11], grad_NF[n : n + 10], with_max=with_max
        )
        for n in range(0, 100, 10)
    ]
    for *parts, together in zip(*pieces, streamed, strict=True):
        assert together is not None
        assert torch.equal(torch.cat([part for part in parts if part is not None]), together)


def test_kept_tensors_are_written_as_far_as_needed(level: str) -> None:
    tables, ids_T, starts_S = made([3, 2], 20, 5)
    features_NF, features_TP = native.reduce(tables, ids_T, starts_S), native.scan(tables, ids_T, starts_S)
    kept_NF, kept_TP = torch.full((4, 805), 7.0), torch.full((9, 810), 7.0)
    assert native.reduce(tables, ids_T, starts_S, kept_NF).data_ptr() == kept_NF.data_ptr()
    assert torch.equal(kept_NF, torch.cat([features_NF, torch.full((2, 805), 7.0)]))
    assert torch.equal(native.scan(tables, ids_T, starts_S, kept_TP), features_TP)
    assert (kept_TP[5:] == 7).all()
    kept = (torch.full((6, 5), 7.0), torch.full((6, 400), 7.0), torch.full((6, 400), 7.0))
    fresh = native.reduce_backward(tables, ids_T, starts_S, features_NF)
    native.reduce_backward(tables, ids_T, starts_S, features_NF, kept)
    for ours, expected in zip(kept, fresh, strict=True):
        assert expected is not None
        assert torch.equal(ours, torch.cat([expected, torch.full((1, ours.shape[1]), 7.0)]))


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 2**40, -(2**63)])
def test_an_id_outside_the_tables_is_refused(level: str, wrong: int) -> None:
    tables, ids_T, starts_S = made([3, 2], 20, 5)
    ids_T[3] = wrong
    for function in (native.reduce, native.scan):
        with pytest.raises(IndexError, match=naming(f"ids[3] is {wrong}", VOCABULARY)):
            function(tables, ids_T, starts_S)
    with pytest.raises(IndexError, match=r"ids\[3\]"):
        native.reduce_backward(tables, ids_T, starts_S, torch.zeros(2, 805))


@pytest.mark.parametrize(
    ("starts", "place"), [([1, 3, 5], 0), ([0, 4, 3], 2), ([0, 6, 5], 1), ([0, -1, 5], 1), ([0, 3, 4], 2)]
)
def test_starts_that_do_not_fit_are_refused(level: str, starts: list[int], place: int) -> None:
    tables, ids_T, _ = made([3, 2], 20, 5)
    with pytest.raises(ValueError, match=naming(f"starts[{place}] is {starts[place]}")):
        native.reduce(tables, ids_T, torch.tensor(starts))


def test_tensors_of_another_kind_are_refused(level: str) -> None:
    (vectors, forward, backward), ids_T, starts_S = made([3, 2], 20, 5)
    assert vectors is not None
    assert forward is not None
    assert backward is not None
    tables = vectors, forward, backward
    wrong: list[tuple[Tables, Tensor, Tensor, str]] = [
        ((None, None, None), ids_T, starts_S, "no table"),
        ((vectors.double(), None, None), ids_T, starts_S, "float64"),
        ((vectors, forward.half(), backward), ids_T, starts_S, "forward table"),
        ((vectors, forward[:, :399].contiguous(), backward), ids_T, starts_S, "399"),
        ((vectors[:, ::2], forward, backward), ids_T, starts_S, "contiguous"),
        ((vectors, forward[1:], backward), ids_T, starts_S, "rows"),
        ((None, torch.zeros(VOCABULARY, 65 * 65), None), ids_T, starts_S, "64"),
        (tables, ids_T.int(), starts_S, "ids"),
        (tables, ids_T, starts_S.int(), "starts"),
        (tables, ids_T, starts_S[:0], "starts"),
    ]
    for case, ids, starts, message in wrong:
        with pytest.raises(ValueError, match=message):
            native.reduce(case, ids, starts)
    with pytest.raises(ValueError, match="float32"):
        native.reduce_backward((vectors.half(), None, None), ids_T, starts_S, torch.zeros(2, 5))
    with pytest.raises(ValueError, match=naming("(1, 805)")):
        native.reduce(tables, ids_T, starts_S, torch.zeros(1, 805))
