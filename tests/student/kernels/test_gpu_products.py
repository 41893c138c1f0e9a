"""The Triton kernels against float64 torch: on the GPU, or in Triton's interpreter where there is none."""

import itertools
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("triton")

from student.kernels import gpu, reference
from student.kernels.reference import Tables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = 7
SUBSETS = [subset for subset in itertools.product([True, False], repeat=3) if any(subset)]
LENGTHS = (3, 0, 1, 9, 0)


@pytest.fixture(autouse=True)
def _poisoned() -> Iterator[None]:
    """What a kernel has not written is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def random_tables(size: int, side: int, subset: tuple[bool, ...] = (True, True, True)) -> Tables:
    torch.manual_seed(side)
    matrices = (torch.eye(side).flatten() + 0.4 * torch.randn(ROWS, side**2) / side**0.5 for _ in range(2))
    vectors, forward, backward = (
        table.to(DEVICE) if wanted else None
        for table, wanted in zip((torch.randn(ROWS, size), *matrices), subset, strict=True)
    )
    return vectors, forward, backward


def ragged(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts_S = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randint(ROWS, (sum(lengths),)).to(DEVICE), starts_S.to(DEVICE)


Rows = list[torch.Tensor | None]


def token_rows(tables: Tables, ids_T: torch.Tensor) -> Rows:
    """The rows of the tokens in float64, as leaves whose gradients are asked for."""
    return [None if table is None else table[ids_T].double().requires_grad_() for table in tables]


def expected_features(tables: Tables, rows: Rows, span: range) -> torch.Tensor:
    """A sequence's features by the book, one product after the other."""
    vectors, forward, backward = rows
    parts = []
    if vectors is not None:
        parts.append(vectors[span.start : span.stop].sum(0))
    for table, matrices, order in ((tables[1], forward, span), (tables[2], backward, reversed(span))):
        if table is not None and matrices is not None:
            product = torch.eye(round(table.shape[1] ** 0.5), dtype=torch.float64, device=DEVICE)
            for token in order:
                product = product @ matrices[token].view_as(product)
            parts.append(product.flatten())
    return torch.cat(parts)


def expected_scan(tables: Tables, rows: Rows, span: range) -> list[torch.Tensor]:
    """The features of each token: of what ends at it, and of what begins at it."""
    vectors, forward, backward = rows
    features = []
    for token in span:
        halves = []
        if vectors is not None or forward is not None:
            up_to = range(span.start, token + 1)
            halves.append(expected_features((*tables[:2], None), [vectors, forward, None], up_to))
        if backward is not None:
            tables_back = (tables[0], None, tables[2])
            halves.append(expected_features(tables_back, [vectors, None, backward], range(token, span.stop)))
        features.append(torch.cat(halves))
    return features


def spans(starts_S: torch.Tensor) -> list[range]:
    starts = starts_S.tolist()
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def assert_gradients(gradients: tuple[torch.Tensor | None, ...], features: torch.Tensor, rows: Rows) -> None:
    for gradient, row in zip(gradients, rows, strict=True):
        assert (gradient is None) == (row is None)
        if gradient is not None and row is not None:
            torch.testing.assert_close(gradient.double(), row.grad, rtol=1e-5, atol=1e-5)


CASES = [
    *[(5, 3, subset) for subset in SUBSETS],
    *[(4, side, (True, True, True)) for side in (1, 8, 20, 28, 64)],
    (700, 16, (True, True, True)),  # more numbers than one program adds up
]


@pytest.mark.parametrize(("size", "side", "subset"), CASES)
def test_features_of_sequences_and_their_gradient(size: int, side: int, subset: tuple[bool, ...]) -> None:
    tables = random_tables(size, side, subset)
    ids_T, starts_S = ragged(*LENGTHS)
    rows = token_rows(tables, ids_T)
    expected_NF = torch.stack([expected_features(tables, rows, span) for span in spans(starts_S)])
    features_NF = gpu.reduce(tables, ids_T, starts_S)
    assert features_NF.dtype == torch.float32
    torch.testing.assert_close(features_NF.double(), expected_NF, rtol=1e-5, atol=1e-5)
    grad_NF = torch.randn_like(features_NF)
    expected_NF.backward(grad_NF.double())  # type: ignore[no-untyped-call]
    assert_gradients(gpu.reduce_backward(tables, ids_T, starts_S, grad_NF), expected_NF, rows)


def test_maxima_stand_beside_the_kernels_sums() -> None:
    tables = random_tables(5, 3)
    ids_T, starts_S = ragged(*LENGTHS)
    rows, places_T = token_rows(tables, ids_T), torch.arange(len(ids_T), device=DEVICE)
    expected_NF = reference.reduce((rows[0], rows[1], rows[2]), places_T, starts_S, with_max=True)
    features_NF = gpu.reduce(tables, ids_T, starts_S, with_max=True)
    torch.testing.assert_close(features_NF.double(), expected_NF, rtol=1e-5, atol=1e-5)
    grad_NF = torch.randn_like(features_NF)
    expected_NF.backward(grad_NF.double())  # type: ignore[no-untyped-call]
    assert_gradients(gpu.reduce_backward(tables, ids_T, starts_S, grad_NF, with_max=True), expected_NF, rows)


@pytest.mark.parametrize(("size", "side", "subset"), CASES)
def test_features_of_tokens_and_their_gradient(size: int, side: int, subset: tuple[bool, ...]) -> None:
    tables = random_tables(size, side, subset)
    ids_T, starts_S = ragged(*LENGTHS)
    rows = token_rows(tables, ids_T)
    expected_TP = torch.stack([row for span in spans(starts_S) for row in expected_scan(tables, rows, span)])
    features_TP = gpu.scan(tables, ids_T, starts_S)
    assert features_TP.dtype == torch.float32
    torch.testing.assert_close(features_TP.double(), expected_TP, rtol=1e-5, atol=1e-5)
    grad_TP = torch.randn_like(features_TP)
    expected_TP.backward(grad_TP.double())  # type: ignore[no-untyped-call]
    assert_gradients(gpu.scan_backward(tables, ids_T, starts_S, features_TP, grad_TP), expected_TP, rows)


def test_the_order_of_a_product_by_hand() -> None:
    shear, swap = [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]
    table_VF = torch.tensor([shear, swap], device=DEVICE)
    ids_T, starts_S = torch.tensor([0, 1], device=DEVICE), torch.tensor([0, 2, 2], device=DEVICE)
    features_NF = gpu.reduce((None, table_VF, table_VF), ids_T, starts_S)
    assert features_NF.tolist() == [[1, 1, 1, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0, 1]]
    features_TP = gpu.scan((None, table_VF, table_VF), ids_T, starts_S)
    assert features_TP.tolist() == [[1, 1, 0, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 1, 1, 0]]


def test_batches_without_tokens_or_sequences() -> None:
    tables = random_tables(2, 3)
    no_ids_T = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    identity = [0, 0, *[1, 0, 0, 0, 1, 0, 0, 0, 1] * 2]
    assert gpu.reduce(tables, no_ids_T, torch.zeros(3, dtype=torch.int64, device=DEVICE)).tolist() == [identity] * 2
    assert gpu.scan(tables, no_ids_T, torch.zeros(1, dtype=torch.int64, device=DEVICE)).shape == (0, 2 * 2 + 2 * 9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_can_be_captured_in_a_graph() -> None:
    tables = random_tables(400, 20)
    ids_T, starts_S = ragged(*LENGTHS)
    gpu.reduce(tables, ids_T, starts_S)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        features_NF = gpu.reduce(tables, ids_T, starts_S)
    ids_T.copy_(torch.randint(ROWS, ids_T.shape))
    graph.replay()
    assert torch.equal(features_NF, gpu.reduce(tables, ids_T, starts_S))
