"""Maxima beside kernels that have none; the reference's serve as such."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from student.kernels import gpu_maxima, reference
from student.kernels.reference import Tables

PARTS = [(True, True, True), (False, True, True), (True, True, False), (True, False, False)]


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5), parts=st.sampled_from(PARTS), seed=st.integers(0, 9)
)
def test_features_and_gradients_are_those_of_the_reference(
    lengths: list[int], parts: tuple[bool, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tables: Tables = tuple(  # type: ignore[assignment]
        torch.randint(-3, 1, (4, 9), generator=generator).double() if part else None for part in parts
    )
    ids_T = torch.randint(4, (sum(lengths),), generator=generator)
    starts_S = torch.tensor([0, *lengths]).cumsum(0)
    features_NF = gpu_maxima.reduce(reference.reduce, tables, ids_T, starts_S)
    torch.testing.assert_close(features_NF, reference.reduce(tables, ids_T, starts_S, with_max=True), rtol=0, atol=0)
    grad_NF = torch.randn(features_NF.shape, generator=generator, dtype=torch.float64)
    ours = gpu_maxima.reduce_backward(reference.reduce_backward, tables, ids_T, starts_S, grad_NF)
    expected = reference.reduce_backward(tables, ids_T, starts_S, grad_NF, with_max=True)
    for gradient_TX, expected_TX in zip(ours, expected, strict=True):
        assert (gradient_TX is None) == (expected_TX is None)
        if gradient_TX is not None:
            torch.testing.assert_close(gradient_TX, expected_TX)
