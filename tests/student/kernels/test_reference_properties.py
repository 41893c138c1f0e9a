import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from student.kernels.reference import GROUP, exported_product, ordered_product


def random_matrices(rows: int, length: int, side: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, side, side, dtype=torch.float64, generator=generator)


@given(rows=st.integers(1, 4), length=st.integers(1, 20), side=st.integers(1, 4), seed=st.integers(0, 99))
def test_equals_a_loop_from_left_to_right(rows: int, length: int, side: int, seed: int) -> None:
    m_BLDD = random_matrices(rows, length, side, seed)
    expected_BDD = m_BLDD[:, 0]
    for position in range(1, length):
        expected_BDD = expected_BDD @ m_BLDD[:, position]
    torch.testing.assert_close(ordered_product(m_BLDD), expected_BDD, rtol=1e-10, atol=1e-10)


def test_order_matters() -> None:
    shear, swap = torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert ordered_product(torch.stack([shear, swap])[None]).tolist() == [[[1, 1], [1, 0]]]
    assert ordered_product(torch.stack([swap, shear])[None]).tolist() == [[[0, 1], [1, 1]]]


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_identity_is_neutral_anywhere(length: int) -> None:
    m_BLDD = random_matrices(2, length, 3)
    identity = torch.eye(3, dtype=torch.float64).expand(2, 1, 3, 3)
    for position in range(length + 1):
        longer_BLDD = torch.cat([m_BLDD[:, :position], identity, m_BLDD[:, position:]], dim=1)
        torch.testing.assert_close(ordered_product(longer_BLDD), ordered_product(m_BLDD), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_gradients(length: int) -> None:
    m_BLDD = random_matrices(2, length, 2).requires_grad_()
    assert torch.autograd.gradcheck(ordered_product, (m_BLDD,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_shape_and_dtype(dtype: torch.dtype) -> None:
    product_BDD = ordered_product(random_matrices(5, 3, 4).to(dtype))
    assert product_BDD.shape == (5, 4, 4)
    assert product_BDD.dtype == dtype


@given(longest=st.sampled_from([1, 2, 7, 8, 9, 16, 17, 64, 127, 128]), data=st.data())
def test_the_exported_product_is_the_same_for_every_length(longest: int, data: st.DataObject) -> None:
    m_BLDD = random_matrices(data.draw(st.integers(1, 3)), data.draw(st.integers(1, longest)), 2)
    m_BLDD /= m_BLDD.norm(dim=(2, 3), keepdim=True)  # products of many shall not explode
    product_BDD, expected_BDD = exported_product(m_BLDD, longest), ordered_product(m_BLDD)
    assert product_BDD.dtype == expected_BDD.dtype
    torch.testing.assert_close(product_BDD, expected_BDD, rtol=1e-10, atol=0)


@pytest.mark.parametrize("longest", [1, 8, 9, 128])
def test_the_exported_product_at_its_ends(longest: int) -> None:
    for length in (1, longest):
        m_BLDD = random_matrices(3, length, 2, seed=longest)
        torch.testing.assert_close(exported_product(m_BLDD, longest), ordered_product(m_BLDD), rtol=1e-9, atol=0)


@pytest.mark.parametrize("longest", [1, 8, 9, 16])
def test_the_exported_product_never_cuts_what_is_too_long(longest: int) -> None:
    room = -(-longest // GROUP) * GROUP  # whole groups
    fits_BLDD = random_matrices(1, room, 2)
    torch.testing.assert_close(exported_product(fits_BLDD, longest), ordered_product(fits_BLDD), rtol=1e-9, atol=0)
    with pytest.raises(RuntimeError):
        exported_product(random_matrices(1, room + 1, 2), longest)
