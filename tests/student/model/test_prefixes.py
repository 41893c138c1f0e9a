"""What a sequence head reads: prefixes and suffixes, each at the place of the token they end or start at."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from student.encoders.encoder import without_padding
from student.encoders.matrices import MatrixEncoder
from student.kernels.reference import ordered_product, prefix_products
from tests.helpers.toy_students import student_config

PAD, VOCABULARY, SIDE, VECTOR = 0, 12, 3, 4
HALF = VECTOR + SIDE**2  # of a position's representation: one direction

A, B, C = [[1.0, 2.0], [0.0, 1.0]], [[1.0, 0.0], [3.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
FORWARD = [[1.0, 2.0, 0.0, 1.0], [7.0, 2.0, 3.0, 1.0], [2.0, 7.0, 1.0, 3.0]]  # A, A B, A B C
BACKWARD = [[3.0, 7.0, 1.0, 2.0], [3.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]]  # C B A, C B, C

SENTENCE = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=9)


def encoder(matrix_size: int = SIDE, vector_size: int = VECTOR, bidirectional: bool = True) -> MatrixEncoder:
    torch.manual_seed(0)
    sizes = {"matrix_size": matrix_size, "vector_size": vector_size, "bidirectional": bidirectional}
    return MatrixEncoder(student_config(**sizes, vocabulary_size=VOCABULARY, initializer_range=0.3)).double()


def by_hand(vector_size: int, bidirectional: bool) -> MatrixEncoder:
    """Tokens 1, 2 and 3 have the matrices A, B and C both ways, and the vectors 1, 20 and 300."""
    model = encoder(2, vector_size, bidirectional)
    for table in model.tables():
        rows = torch.tensor([A, B, C]) if table.embedding_dim == 4 else torch.tensor([1.0, 20.0, 300.0])
        with torch.no_grad():
            table.weight[1:4] = rows.view(3, -1).double()
    return model


def per_token(model: MatrixEncoder, ids_BL: torch.Tensor) -> torch.Tensor:
    return model.per_token(*without_padding(ids_BL, PAD))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
@given(rows=st.integers(1, 3), length=st.integers(1, 17), side=st.integers(1, 4), seed=st.integers(0, 99))
def test_prefix_products_equal_a_loop(
    dtype: torch.dtype, tolerance: float, rows: int, length: int, side: int, seed: int
) -> None:
    noise = torch.randn(rows, length, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    m_BLDD = (torch.eye(side) + 0.1 * noise).to(dtype)
    expected_BDD, expected = torch.eye(side, dtype=torch.float64), []
    for position in range(length):
        expected_BDD = expected_BDD @ m_BLDD[:, position].double()
        expected.append(expected_BDD)
    products_BLDD = prefix_products(m_BLDD)
    assert products_BLDD.dtype == dtype
    torch.testing.assert_close(products_BLDD.double(), torch.stack(expected, dim=1), rtol=tolerance, atol=tolerance)


def test_the_last_prefix_is_the_whole_product() -> None:
    m_BLDD = torch.randn(2, 11, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(prefix_products(m_BLDD)[:, -1], ordered_product(m_BLDD))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_prefix_products_have_gradients(length: int) -> None:
    m_BLDD = torch.randn(2, length, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(prefix_products, (m_BLDD.requires_grad_(),))


def test_a_position_holds_its_prefix_and_suffix() -> None:
    features_LF = per_token(by_hand(vector_size=1, bidirectional=True), torch.tensor([[1, 2, 3]]))[0]
    sums, suffix_sums = [1.0, 21.0, 321.0], [321.0, 320.0, 300.0]
    expected = zip(sums, FORWARD, suffix_sums, BACKWARD, strict=True)
    assert features_LF.tolist() == [[v, *forward, w, *backward] for v, forward, w, backward in expected]


def test_after_the_end_prefixes_stay_and_suffixes_are_neutral() -> None:
    longer, nothing = [1, 2, 3, 1, 2], [0, 1, 0, 0, 1]
    ids_BL = torch.tensor([longer, [1, 2, 3, PAD, PAD], [PAD] * 5])
    _, features_LF, empty_LF = per_token(by_hand(vector_size=1, bidirectional=True), ids_BL)
    assert features_LF[3:].tolist() == [[321, *FORWARD[2], *nothing]] * 2
    assert empty_LF.tolist() == [[*nothing, *nothing]] * 5


def test_one_direction_has_prefixes_only() -> None:
    ids = torch.tensor([[1, 2, 3]])
    hybrid, cmow = (per_token(by_hand(vector_size, bidirectional=False), ids) for vector_size in (1, 0))
    assert hybrid.tolist() == [[[v, *product] for v, product in zip((1, 21, 321), FORWARD, strict=True)]]
    assert cmow.tolist() == [FORWARD]


def test_without_matrices_there_are_sums_in_one_direction() -> None:
    cbow = encoder(0, 2, bidirectional=True)
    (vectors,) = cbow.tables()
    expected = torch.stack([vectors.weight[1], vectors.weight[1] + vectors.weight[2]])[None]
    torch.testing.assert_close(per_token(cbow, torch.tensor([[1, 2]])), expected)


def test_directions_have_their_own_matrices() -> None:
    cmow = encoder(2, 0, bidirectional=True)
    forward, backward = (table.weight.view(-1, 2, 2) for table in cmow.tables())
    first, last = per_token(cmow, torch.tensor([[1, 2]]))[0]
    torch.testing.assert_close(first, torch.cat([forward[1].flatten(), (backward[2] @ backward[1]).flatten()]))
    torch.testing.assert_close(last, torch.cat([(forward[1] @ forward[2]).flatten(), backward[2].flatten()]))


@pytest.mark.parametrize(
    ("matrix_size", "vector_size", "bidirectional"),
    [(SIDE, VECTOR, True), (SIDE, VECTOR, False), (SIDE, 0, True), (0, VECTOR, True)],
)
def test_sizes_are_those_that_the_encoder_states(matrix_size: int, vector_size: int, bidirectional: bool) -> None:
    model = encoder(matrix_size, vector_size, bidirectional)
    assert per_token(model, torch.tensor([[1, 2, 3], [4, PAD, PAD]])).shape == (2, 3, model.token_size)


@given(sentence=SENTENCE, data=st.data())
def test_a_token_changes_prefixes_after_and_suffixes_before(sentence: list[int], data: st.DataObject) -> None:
    model, place = encoder(), data.draw(st.integers(0, len(sentence) - 1))
    other = data.draw(st.integers(1, VOCABULARY - 1).filter(lambda token: token != sentence[place]))
    changed = [*sentence[:place], other, *sentence[place + 1 :]]
    before_LF, after_LF = (per_token(model, torch.tensor([ids]))[0] for ids in (sentence, changed))
    differs = (before_LF - after_LF).abs().view(len(sentence), 2, HALF).amax(dim=2) > 1e-9
    assert differs[:, 0].tolist() == [position >= place for position in range(len(sentence))]
    assert differs[:, 1].tolist() == [position <= place for position in range(len(sentence))]


@given(sentence=SENTENCE)
def test_both_ends_hold_the_whole_sentence(sentence: list[int]) -> None:
    model, ids = encoder(), torch.tensor([sentence])
    features_LF = per_token(model, ids)[0]
    sums, forward, backward = model(ids)[0].split([VECTOR, SIDE**2, SIDE**2])
    torch.testing.assert_close(features_LF[-1, :HALF], torch.cat([sums, forward]))
    torch.testing.assert_close(features_LF[0, HALF:], torch.cat([sums, backward]))


@given(sentences=st.lists(SENTENCE, min_size=1, max_size=4))
def test_positions_do_not_depend_on_padding_or_batch(sentences: list[list[int]]) -> None:
    model, width = encoder(), max(map(len, sentences))
    together = per_token(model, torch.tensor([ids + [PAD] * (width - len(ids)) for ids in sentences]))
    for ids, features_LF in zip(sentences, together, strict=True):
        alone_LF = per_token(model, torch.tensor([ids]))[0]
        torch.testing.assert_close(features_LF[: len(ids)], alone_LF, rtol=1e-9, atol=1e-9)
