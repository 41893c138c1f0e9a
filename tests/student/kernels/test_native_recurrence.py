"""Element-wise recurrences in C++ against padded arrays in float64, for every level of instructions of this machine."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from student.encoders.recurrent import RecurrentEncoder
from student.kernels import native
from student.kernels.native_recurrence import recur
from tests.helpers.messages import naming
from tests.helpers.toy_students import assert_same_features_and_gradients, ragged, recurrent_student

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels are not built")

SENTENCES = st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=8)


def encoder_of(vector_size: int, seed: int) -> RecurrentEncoder:
    encoder = recurrent_student(vector_size=vector_size).encoder
    assert isinstance(encoder, RecurrentEncoder)
    torch.manual_seed(seed)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder


@settings(max_examples=40, deadline=None)
@given(sentences=SENTENCES, vector_size=st.sampled_from([5, 16, 47, 48]), seed=st.integers(0, 999))
def test_features_and_gradients_equal_those_of_padded_arrays(
    level: str, sentences: list[list[int]], vector_size: int, seed: int
) -> None:
    encoder = encoder_of(vector_size, seed)
    assert_same_features_and_gradients(encoder, copy.deepcopy(encoder).double(), sentences, 1e-4)


def test_two_tokens_by_hand(level: str) -> None:
    gates_TD = torch.tensor([[0.5, 3.0], [-2.0, 0.25]], requires_grad=True)
    values_TD = torch.tensor([[1.0, 4.0], [5.0, -8.0]], requires_grad=True)
    pooled_NF = recur(gates_TD, values_TD, torch.tensor([0, 0, 2]))
    # There: 1, then -2 * 1 + 5 = 3. Back: -8, then 3 * -8 + 4 = -20.
    torch.testing.assert_close(pooled_NF, torch.tensor([[0.0] * 6, [3.0, 3, 1, -20, -8, -20]]))
    pooled_NF[1].dot(torch.tensor([1.0, 10, 100, 1000, 10_000, 100_000])).backward()  # type: ignore[no-untyped-call]
    # The last state there is also the largest one: 11. It passes -2 times that to the first one, which is the smallest.
    # The last state back is also the smallest one: 101,000. It passes 3 times that to the largest one before it.
    torch.testing.assert_close(values_TD.grad, torch.tensor([[100.0 - 2 * 11, 101_000], [11, 10_000 + 3 * 101_000]]))
    torch.testing.assert_close(gates_TD.grad, torch.tensor([[0.0, 101_000 * -8], [11 * 1.0, 0]]))


def test_the_last_of_equal_states_gets_the_gradient(level: str) -> None:
    values_TD = torch.tensor([[2.0, 0], [2, 0], [1, 0]], requires_grad=True)
    pooled_NF = recur(torch.zeros(3, 2), values_TD, torch.tensor([0, 3]))
    pooled_NF[0, 1].backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(values_TD.grad, torch.tensor([[0.0, 0], [1, 0], [0, 0]]))


def test_results_do_not_depend_on_threads(level: str, threads: None) -> None:
    sentences = [[1 + (7 * n + k) % 9 for k in range(n % 12)] for n in range(40)]
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        ids_T, starts_S = ragged(sentences)
        values_TD = torch.randn(len(ids_T), 42, generator=torch.Generator().manual_seed(1)).requires_grad_()
        pooled_NF = recur(values_TD.tanh(), values_TD, starts_S)
        pooled_NF.square().sum().backward()  # type: ignore[no-untyped-call]
        assert values_TD.grad is not None
        results.append((pooled_NF.detach(), values_TD.grad))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("starts", [[], [1, 3], [0, 2], [0, 4, 3], [0, -1, 3], [0, 1 << 40]])
def test_starts_that_do_not_fit_are_refused(level: str, starts: list[int]) -> None:
    with pytest.raises(ValueError, match=naming("starts[")):
        recur(torch.zeros(3, 4), torch.zeros(3, 4), torch.tensor(starts, dtype=torch.int64))


def test_other_tensors_are_refused(level: str) -> None:
    rows, starts_S = torch.zeros(2, 4), torch.tensor([0, 1, 2])
    for wrong in ((rows.bfloat16(), rows, starts_S), (rows, rows.double(), starts_S), (rows, rows, starts_S.int())):
        with pytest.raises(ValueError, match=r"int32|bfloat16|float64"):
            recur(*wrong)
    for shape in ((2, 3), (1, 4)):
        with pytest.raises(ValueError, match=naming(str(shape))):
            recur(torch.zeros(shape), torch.zeros(2, 3), starts_S)
