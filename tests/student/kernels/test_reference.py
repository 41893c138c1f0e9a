"""The reference of the ordered products against loops over numbers, on ragged batches."""

import itertools

import pytest
import torch
from torch import Tensor

from student.kernels import reference
from student.kernels.reference import Tables

LENGTHS = (3, 0, 1, 5)
SUBSETS = [(True, True, True), (False, True, True), (True, True, False), (True, False, False), (False, True, False)]


def _case(parts: tuple[bool, bool, bool], side: int = 3) -> tuple[Tables, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (4, side * side, side * side)
    tables = [
        torch.randn(7, size, generator=generator, dtype=torch.float64) if part else None
        for part, size in zip(parts, sizes, strict=True)
    ]
    ids_T = torch.randint(7, (sum(LENGTHS),), generator=generator)
    return (tables[0], tables[1], tables[2]), ids_T, torch.tensor([0, *itertools.accumulate(LENGTHS)])


def _product(table: Tensor, ids: list[int], side: int = 3) -> Tensor:
    product = torch.eye(side, dtype=torch.float64)
    for token in ids:
        product = product @ table[token].view(side, side)
    return product.flatten()


def _sum(table: Tensor, ids: list[int]) -> Tensor:
    return table[torch.tensor(ids, dtype=torch.int64)].sum(0)


@pytest.mark.parametrize("parts", SUBSETS)
def test_each_sequence_is_sum_and_products_in_both_directions(parts: tuple[bool, bool, bool]) -> None:
    (vectors, forward, backward), ids_T, starts_S = _case(parts)
    rows = []
    for start, stop in itertools.pairwise(starts_S.tolist()):
        ids = ids_T[start:stop].tolist()
        row = [_sum(vectors, ids)] if vectors is not None else []
        row += [_product(forward, ids)] if forward is not None else []
        row += [_product(backward, ids[::-1])] if backward is not None else []
        rows.append(torch.cat(row))
    torch.testing.assert_close(reference.reduce((vectors, forward, backward), ids_T, starts_S), torch.stack(rows))


def test_maxima_stand_beside_the_sums_by_hand() -> None:
    vectors, matrix = torch.tensor([[1.0, -3.0], [2.0, -1.0], [-4.0, -1.0]]), torch.tensor([[7.0], [1.0], [1.0]])
    ids_T, starts_S = torch.tensor([0, 1, 2, 2, 2, 0]), torch.tensor([0, 3, 3, 4, 6])
    features_NF = reference.reduce((vectors, matrix, None), ids_T, starts_S, with_max=True)
    assert features_NF.tolist() == [[-1, -5, 2, -1, 7], [0, 0, 0, 0, 1], [-4, -1, -4, -1, 1], [-3, -4, 1, -1, 7]]


def test_the_first_of_equals_gets_the_gradient_of_a_maximum() -> None:
    vectors = torch.tensor([[1.0, -3.0], [2.0, -1.0], [-4.0, -1.0]])
    ids_T, starts_S, grad_NF = torch.tensor([0, 1, 2, 1, 2]), torch.tensor([0, 4, 4, 5]), torch.zeros(3, 4)
    grad_NF[:, 2:] = torch.tensor([[10.0, 20.0], [7.0, 7.0], [30.0, 40.0]])
    gradient, *_ = reference.reduce_backward((vectors, None, None), ids_T, starts_S, grad_NF, with_max=True)
    assert gradient is not None
    assert gradient.tolist() == [[0, 0], [10, 20], [0, 0], [0, 0], [30, 40]]


@pytest.mark.parametrize("parts", SUBSETS)
def test_each_token_has_what_precedes_and_what_follows_it(parts: tuple[bool, bool, bool]) -> None:
    (vectors, forward, backward), ids_T, starts_S = _case(parts)
    rows = []
    for start, stop in itertools.pairwise(starts_S.tolist()):
        for place in range(start, stop):
            before, after = ids_T[start : place + 1].tolist(), ids_T[place:stop].tolist()
            row = [_sum(vectors, before)] if vectors is not None else []
            row += [_product(forward, before)] if forward is not None else []
            if backward is not None:
                row += [_sum(vectors, after)] if vectors is not None else []
                row.append(_product(backward, after[::-1]))
            rows.append(torch.cat(row))
    torch.testing.assert_close(reference.scan((vectors, forward, backward), ids_T, starts_S), torch.stack(rows))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_small_table_holds_what_is_added_to_the_neutral_row(dtype: torch.dtype) -> None:
    (vectors, forward, backward), ids_T, starts_S = _case((True, True, True))
    assert vectors is not None
    assert forward is not None
    assert backward is not None
    small = (vectors.to(dtype), forward.to(dtype), backward.to(dtype))
    identity = torch.eye(3).flatten()
    whole = (small[0].float(), small[1].float() + identity, small[2].float() + identity)
    for function in (reference.reduce, reference.scan):
        torch.testing.assert_close(function(small, ids_T, starts_S), function(whole, ids_T, starts_S))


def test_the_order_of_a_product_by_hand() -> None:
    shear, swap = [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]
    table_VF = torch.tensor([shear, swap])
    ids_T, starts_S = torch.tensor([0, 1]), torch.tensor([0, 2, 2])
    features_NF = reference.reduce((None, table_VF, table_VF), ids_T, starts_S)
    assert features_NF.tolist() == [[1, 1, 1, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0, 1]]
    features_TP = reference.scan((None, table_VF, table_VF), ids_T, starts_S)
    assert features_TP.tolist() == [[1, 1, 0, 1, 0, 1, 1, 1], [1, 1, 1, 0, 0, 1, 1, 0]]


def test_batches_without_tokens_or_sequences() -> None:
    tables = (torch.randn(7, 2), torch.randn(7, 9), torch.randn(7, 9))
    no_ids_T = torch.zeros(0, dtype=torch.int64)
    identity = [0, 0, *[1, 0, 0, 0, 1, 0, 0, 0, 1] * 2]
    assert reference.reduce(tables, no_ids_T, torch.zeros(3, dtype=torch.int64)).tolist() == [identity] * 2
    assert reference.reduce(tables, no_ids_T, torch.zeros(1, dtype=torch.int64)).shape == (0, 2 + 2 * 9)
    assert reference.scan(tables, no_ids_T, torch.zeros(1, dtype=torch.int64)).shape == (0, 2 * 2 + 2 * 9)
