"""Alignment, pooling and recurrences in C++ against padded arrays in float64, for each level of instructions."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from student.encoders.aligned import AlignedEncoder
from student.encoders.recurrent import RecurrentEncoder
from student.kernels import native, native_sequences
from tests.helpers.messages import naming
from tests.helpers.toy_students import aligned_student, assert_same_features_and_gradients, ragged, recurrent_student

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels are not built")

SENTENCES = st.lists(st.lists(st.integers(1, 9), max_size=9), min_size=2, max_size=8)


def aligned_encoder(vector_size: int, seed: int) -> AlignedEncoder:
    encoder = aligned_student(vector_size=vector_size).encoder
    assert isinstance(encoder, AlignedEncoder)
    torch.manual_seed(seed)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter)
    return encoder


# Sizes around those of registers, of which a row ends within one or with it.
@settings(max_examples=40, deadline=None)
@given(
    sentences=SENTENCES,
    vector_size=st.sampled_from([5, 16, 23, 48]),
    is_pair=st.booleans(),
    seed=st.integers(0, 999),
)
def test_aligned_features_and_gradients_equal_those_of_padded_arrays(
    level: str, sentences: list[list[int]], vector_size: int, is_pair: bool, seed: int
) -> None:
    encoder = aligned_encoder(vector_size, seed)
    exact = copy.deepcopy(encoder).double()
    assert native.can_do(encoder.compare.weight)
    assert not native.can_do(exact.compare.weight)
    sentences = sentences[: len(sentences) // 2 * 2]
    assert_same_features_and_gradients(encoder, exact, sentences, 3e-5, is_pair)


def test_two_aligned_tokens_by_hand(level: str) -> None:
    # The vectors [1] and [-1], the contextual vectors [3] and [5]; beside them the sentence of the first token.
    rows_TD = torch.tensor([[1.0, 3.0], [-1.0, 5.0], [1.0, 3.0]], requires_grad=True)
    inputs_TF = native_sequences.align(rows_TD, torch.tensor([0, 2, 3]), 1, 0.5)
    share = math.exp(0.5) / (math.exp(0.5) + math.exp(-0.5))
    seen = share * 3 + (1 - share) * 5
    expected = [[3, 3, 9, 0], [5, 3, 15, 2], [3, seen, 3 * seen, seen - 3]]
    torch.testing.assert_close(inputs_TF, torch.tensor(expected))
    inputs_TF[2, 1].backward()  # type: ignore[no-untyped-call]
    # What the third token sees moves with the scores of both tokens, by the slope of their shares times 3 - 5.
    slope = 0.5 * share * (1 - share) * (3 - 5)
    expected = [[slope, share], [-slope, 1 - share], [slope * (1 - -1), 0]]
    torch.testing.assert_close(rows_TD.grad, torch.tensor(expected))


def test_tokens_that_share_a_maximum_share_its_gradient(level: str) -> None:
    compared_TH = torch.tensor([[2.0, -1.0], [2.0, -3.0], [1.0, 4.0]], requires_grad=True)
    pooled_NX = native_sequences.pool(compared_TH, torch.tensor([0, 2, 3, 3]))
    torch.testing.assert_close(pooled_NX, torch.tensor([[4.0, 0, 2, 0], [1, 4, 1, 4], [0, 0, 0, 0]]))
    pooled_NX.mv(torch.tensor([1.0, 10, 100, 1000])).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(compared_TH.grad, torch.tensor([[51.0, 0], [51, 0], [101, 1010]]))


def test_results_do_not_depend_on_threads(level: str, threads: None) -> None:
    sentences = [[1 + (7 * n + k) % 9 for k in range(n % 12)] for n in range(40)]
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        rows_TD = torch.randn(sum(map(len, sentences)), 42, generator=torch.Generator().manual_seed(1))
        rows_TD.requires_grad_()
        inputs_TF = native_sequences.align(rows_TD, ragged(sentences)[1], 20, 0.2)
        inputs_TF.square().sum().backward()  # type: ignore[no-untyped-call]
        assert rows_TD.grad is not None
        results.append((inputs_TF.detach(), rows_TD.grad))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("starts", [[], [1, 3], [0, 2], [0, 4, 3], [0, -1, 3], [0, 1 << 40]])
def test_starts_that_do_not_fit_are_refused(level: str, starts: list[int]) -> None:
    rows, starts_S = torch.zeros(3, 4), torch.tensor(starts, dtype=torch.int64)
    with pytest.raises(ValueError, match=naming("starts[")):
        native_sequences.align(rows, starts_S, 1, 1.0)
    with pytest.raises(ValueError, match=naming("starts[")):
        native_sequences.pool(rows, starts_S)
    with pytest.raises(ValueError, match=naming("starts[")):
        native_sequences.recur(rows, rows, starts_S)


@pytest.mark.parametrize("num_pairs", [0, 1, 2, 4])
def test_sentences_without_a_partner_are_refused(level: str, num_pairs: int) -> None:
    with pytest.raises(ValueError, match=f"3 sentences.*{num_pairs} pairs"):
        native_sequences.align(torch.zeros(3, 4), torch.tensor([0, 1, 2, 3]), num_pairs, 1.0)


def test_tensors_of_other_types_are_refused(level: str) -> None:
    rows, starts_S = torch.zeros(2, 4), torch.tensor([0, 1, 2])
    for wrong in ((rows.bfloat16(), starts_S), (rows, starts_S.int())):
        with pytest.raises(ValueError, match=r"int32|bfloat16"):
            native_sequences.align(*wrong, 1, 1.0)
        with pytest.raises(ValueError, match=r"int32|bfloat16"):
            native_sequences.pool(*wrong)


def test_a_number_that_is_none_reaches_the_sums(level: str) -> None:
    rows_TD = torch.tensor([[1.0, 2.0], [float("nan"), 1.0]], requires_grad=True)
    inputs_TF = native_sequences.align(rows_TD, torch.tensor([0, 1, 2]), 1, 1.0)
    pooled_NX = native_sequences.pool(inputs_TF, torch.tensor([0, 2]))
    assert pooled_NX[0, :4].isnan().any()
    pooled_NX.sum().backward()  # type: ignore[no-untyped-call]
    assert rows_TD.grad is not None
    assert rows_TD.grad.isnan().any()


def recurrent_encoder(vector_size: int, seed: int) -> RecurrentEncoder:
    encoder = recurrent_student(vector_size=vector_size).encoder
    assert isinstance(encoder, RecurrentEncoder)
    torch.manual_seed(seed)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder


@settings(max_examples=40, deadline=None)
@given(
    sentences=st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=8),
    vector_size=st.sampled_from([5, 16, 47, 48]),
    seed=st.integers(0, 999),
)
def test_recurrent_features_and_gradients_equal_those_of_padded_arrays(
    level: str, sentences: list[list[int]], vector_size: int, seed: int
) -> None:
    encoder = recurrent_encoder(vector_size, seed)
    assert_same_features_and_gradients(encoder, copy.deepcopy(encoder).double(), sentences, 1e-4)


def test_two_states_by_hand(level: str) -> None:
    gates_TD = torch.tensor([[0.5, 3.0], [-2.0, 0.25]], requires_grad=True)
    values_TD = torch.tensor([[1.0, 4.0], [5.0, -8.0]], requires_grad=True)
    pooled_NF = native_sequences.recur(gates_TD, values_TD, torch.tensor([0, 0, 2]))
    # There: 1, then -2 * 1 + 5 = 3. Back: -8, then 3 * -8 + 4 = -20.
    torch.testing.assert_close(pooled_NF, torch.tensor([[0.0] * 6, [3.0, 3, 1, -20, -8, -20]]))
    pooled_NF[1].dot(torch.tensor([1.0, 10, 100, 1000, 10_000, 100_000])).backward()  # type: ignore[no-untyped-call]
    # The last state there is also the largest one: 11. It passes -2 times that to the first one, which is the smallest.
    # The last state back is also the smallest one: 101,000. It passes 3 times that to the largest one before it.
    torch.testing.assert_close(values_TD.grad, torch.tensor([[100.0 - 2 * 11, 101_000], [11, 10_000 + 3 * 101_000]]))
    torch.testing.assert_close(gates_TD.grad, torch.tensor([[0.0, 101_000 * -8], [11 * 1.0, 0]]))


def test_the_last_of_equal_states_gets_the_gradient(level: str) -> None:
    values_TD = torch.tensor([[2.0, 0], [2, 0], [1, 0]], requires_grad=True)
    pooled_NF = native_sequences.recur(torch.zeros(3, 2), values_TD, torch.tensor([0, 3]))
    pooled_NF[0, 1].backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(values_TD.grad, torch.tensor([[0.0, 0], [1, 0], [0, 0]]))


def test_recurrences_do_not_depend_on_threads(level: str, threads: None) -> None:
    sentences = [[1 + (7 * n + k) % 9 for k in range(n % 12)] for n in range(40)]
    results = []
    for count in (1, 3):
        torch.set_num_threads(count)
        ids_T, starts_S = ragged(sentences)
        values_TD = torch.randn(len(ids_T), 42, generator=torch.Generator().manual_seed(1)).requires_grad_()
        pooled_NF = native_sequences.recur(values_TD.tanh(), values_TD, starts_S)
        pooled_NF.square().sum().backward()  # type: ignore[no-untyped-call]
        assert values_TD.grad is not None
        results.append((pooled_NF.detach(), values_TD.grad))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_other_tensors_are_refused(level: str) -> None:
    rows, starts_S = torch.zeros(2, 4), torch.tensor([0, 1, 2])
    for wrong in ((rows.bfloat16(), rows, starts_S), (rows, rows.double(), starts_S), (rows, rows, starts_S.int())):
        with pytest.raises(ValueError, match=r"int32|bfloat16|float64"):
            native_sequences.recur(*wrong)
    for shape in ((2, 3), (1, 4)):
        with pytest.raises(ValueError, match=naming(str(shape))):
            native_sequences.recur(torch.zeros(shape), torch.zeros(2, 3), starts_S)
